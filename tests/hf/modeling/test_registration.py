"""In fresh interpreters: what is imported when, and that each order of imports works."""

import subprocess
import sys

import pytest

from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model

LOAD = """
model = AutoModelForCausalLM.from_pretrained({folder!r})
assert type(model).__module__ == "gatelm.hf.modeling.wrapper", type(model)
assert AutoConfig.from_pretrained({folder!r}).hidden_size == 16
assert AutoConfig.for_model("llama").model_type == "llama"
"""
AUTO = "from transformers import AutoConfig, AutoModelForCausalLM\n"
ORDERS = {
    "gatelm-first": "import gatelm\n" + AUTO,
    "transformers-first": "import transformers\nimport gatelm\n" + AUTO,
    "auto-classes-first": AUTO + "AutoModelForCausalLM._model_mapping\nimport gatelm\n",
    "configs-first": "import transformers.models.auto.configuration_auto\nimport gatelm\n" + AUTO,
    "a-model-first": "from transformers import LlamaForCausalLM\nimport gatelm\n" + AUTO,
}


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    layer = {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 16}, "gates": ["sdpa-head"]}
    tree = {"vocab_size": 31, "hidden_dim": 16, "num_layers": 1, "layer": layer}
    decoder = Decoder(ModelConfig.parse(tree))
    init_weights(decoder, 0)
    path = tmp_path_factory.mktemp("model") / "model"
    export_model(path, decoder, None, {})
    return path


def test_importing_gatelm_imports_nothing_heavy():
    heavy = ("transformers", "torch", "numpy", "pydantic", "importlib.abc")
    assert run(f"import sys, gatelm\nprint([m for m in {heavy} if m in sys.modules])") == "[]\n"


@pytest.mark.slow
def test_importing_both_does_not_load_the_model_class():
    names = "gatelm.hf.modeling.wrapper", "gatelm.nn.model", "transformers.modeling_utils"
    code = "import sys, gatelm\nfrom transformers import AutoConfig\n"
    assert run(code + f"print([m for m in {names} if m in sys.modules])") == "[]\n"


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_the_auto_classes_know_our_models(order, folder):
    run(ORDERS[order] + LOAD.format(folder=str(folder)))


@pytest.mark.slow
def test_without_gatelm_the_type_is_unknown(folder):
    code = AUTO + f"try:\n    AutoConfig.from_pretrained({str(folder)!r})\n"
    assert "unknown" in run(code + "except ValueError:\n    print('unknown')")
