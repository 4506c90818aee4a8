import json

import pytest
import torch

from gatelm.analysis.movement import sentence
from gatelm.config import ConfigError
from gatelm.config.load import merge
from gatelm.data.tokenizer import byte_tokenizer, train_bpe
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder
from gatelm.train.config import RunConfig
from gatelm.train.saving.export import export_model, load_model
from gatelm.train.start import InitFrom, starting_model
from gatelm.train.trainer import train

ZERO = {"site": "sdpa", "init": {"weight": "zeros"}}
TWO = {**ZERO, "activation": "two_sigmoid"}
RANDOM = {"site": "sdpa"}


@pytest.fixture
def plain(tiny, tmp_path):
    """The folder of a model without gates, and the model."""
    model = Decoder(tiny({"model": {"layer": {"gates": []}}}).model_for(258))
    init_weights(model, 7)
    export_model(tmp_path / "plain", model, byte_tokenizer(), {})
    return tmp_path / "plain", model.eval()


def upcycled(tiny, folder, gates, **more):
    tree = {"init_from": str(folder), "model": {"layer": {"gates": gates}}, "data": TEXT}
    return RunConfig.parse(merge({**tiny().tree(), "model": None, **tree}, more))


TEXT = {"kind": "text", "source": "unused.txt", "seq_len": 16}
TOKENS = torch.arange(24).view(2, 12)


def test_the_folders_config_and_tokenizer_fill_what_is_left_out(tiny, plain):
    folder, model = plain
    cfg = upcycled(tiny, folder, [TWO])
    assert cfg.init_from == InitFrom(path=str(folder))
    assert cfg.model.hidden_dim == model.cfg.hidden_dim
    assert [g.activation for g in cfg.model.layer.gates] == ["two_sigmoid"]
    assert cfg.data.tokenizer.path == str(folder / "tokenizer.json")
    again = RunConfig.parse(cfg.tree())
    assert again == cfg
    assert again.content_hash() == cfg.content_hash()


def test_a_run_without_a_trained_model_keeps_its_hash(tiny):
    assert tiny().content_hash() == "c237937de2f3"
    tree = {"optim": {"groups": {"matrices": {"train_from_step": 5}}}}
    assert tiny(tree).content_hash() != tiny().content_hash()


@pytest.mark.parametrize(
    "gates", [[ZERO], [TWO], [{**ZERO, "init": {"weight": "zeros", "bias": 2}}]]
)
def test_preserved_outputs(tiny, plain, gates):
    folder, model = plain
    cfg = upcycled(tiny, folder, gates)
    start = starting_model(cfg.model, 0, cfg.init_from, byte_tokenizer()).eval()
    with torch.no_grad():
        torch.testing.assert_close(start(TOKENS), model(TOKENS), rtol=0, atol=1e-6)
        if "bias" not in gates[0]["init"]:
            assert torch.equal(start(TOKENS), model(TOKENS))


def test_random_gates_change_the_outputs_and_nothing_else(tiny, plain):
    folder, model = plain
    cfg = upcycled(tiny, folder, [RANDOM])
    with pytest.raises(ConfigError, match=r"random weights .* use init.weight zeros"):
        starting_model(cfg.model, 0, cfg.init_from, None)
    cfg = upcycled(
        tiny, folder, [RANDOM], init_from={"path": str(folder), "new_gates": "as_configured"}
    )
    start = starting_model(cfg.model, 0, cfg.init_from, None).eval()
    state = start.state_dict()
    assert all(torch.equal(state[n], t) for n, t in model.state_dict().items())
    with torch.no_grad():
        assert not torch.allclose(start(TOKENS), model(TOKENS), atol=1e-4)
    # the same gates as a run from scratch with this seed
    fresh = Decoder(start.cfg)
    init_weights(fresh, 0)
    name = "layers.0.attn.gates.sdpa.proj.x.weight"
    assert torch.equal(state[name], fresh.state_dict()[name])


def test_mistakes_are_one_sentence(tiny, plain, tmp_path):
    folder, _ = plain
    with pytest.raises(ConfigError, match=r"init_from.path: .*nowhere: no model folder"):
        upcycled(tiny, tmp_path / "nowhere", [TWO])
    cfg = upcycled(tiny, folder, [TWO], model={"layer": {"ffn": {"ffn_dim": 40}}})
    with pytest.raises(ConfigError, match=r"layers.0.ffn.ffn_dim is 24 in the trained .* 40 here"):
        starting_model(cfg.model, 0, cfg.init_from, None)
    other = train_bpe(["gated attention"] * 9, 270)
    cfg = upcycled(tiny, folder, [TWO])
    with pytest.raises(ConfigError, match=r"data.tokenizer: gives other ids"):
        starting_model(cfg.model, 0, cfg.init_from, other)
    with pytest.raises(ConfigError, match=r"data: a vocabulary of 300, but .* has one of 258"):
        cfg.model_for(300)
    assert cfg.model_for(200).vocab_size == 258
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(
        ConfigError, match=r"'llama', not of gatelm; convert it first: gatelm convert"
    ):
        upcycled(tiny, foreign, [TWO])
    with pytest.raises(ConfigError, match=r"init_from.path: name a model folder"):
        RunConfig.parse({**tiny().tree(), "init_from": " "})


PHASES = {
    "groups": {
        "matrices": {"train_from_step": 3},
        "vectors": {"train_from_step": 3},
        "embeddings": {"train_from_step": 3},
        "gates": {"lr_scale": 5.0, "weight_decay": 0.0},
    }
}


def gates_first(tiny, folder, **train_keys):
    tree = {"init_from": str(folder), "model": {"layer": {"gates": [ZERO]}}, "optim": PHASES}
    return RunConfig.parse(merge({**tiny().tree(), "model": None}, {**tree, "train": train_keys}))


@pytest.fixture
def trained(tiny, tmp_path):
    train(tiny({"model": {"layer": {"gates": []}}}), tmp_path / "first")
    return tmp_path / "first"


def test_gates_train_first_and_are_reported(tiny, trained, tmp_path):
    before, _ = load_model(trained)
    cfg = gates_first(tiny, trained)
    short = train(gates_first(tiny, trained, total_steps=3), tmp_path / "short")
    after, _ = load_model(tmp_path / "short")
    for name, tensor in before.state_dict().items():
        factor = 2.0 if name.endswith("o_proj.weight") else 1.0
        assert torch.equal(after.state_dict()[name], factor * tensor), name
    assert after.state_dict()["layers.0.attn.gates.sdpa.proj.x.weight"].any()
    assert 0 < short.metrics["gate_score_change"] < 0.5
    assert short.metrics["gate_mean_start"] == 0.5
    assert "gate_weight_change_relative" not in short.metrics
    assert sentence(short.metrics).startswith("the gates")
    entries = json.loads((tmp_path / "short" / "analysis.json").read_text())["gate_movement"]
    assert [(e["layer"], e["site"]) for e in entries] == [(0, "sdpa"), (1, "sdpa")]

    train(cfg, tmp_path / "long")
    after, _ = load_model(tmp_path / "long")
    assert not torch.equal(after.embedding.weight, before.embedding.weight)


@pytest.mark.parametrize("stop", [1, 4])
def test_a_stop_in_either_phase_changes_nothing(tiny, trained, tmp_path, stop):
    train(gates_first(tiny, trained), tmp_path / "whole")
    assert (
        train(gates_first(tiny, trained, stop_at_step=stop), tmp_path / "cut").status == "stopped"
    )
    train(gates_first(tiny, trained), tmp_path / "cut")
    whole, _ = load_model(tmp_path / "whole")
    cut, _ = load_model(tmp_path / "cut")
    for name, tensor in whole.state_dict().items():
        assert torch.equal(cut.state_dict()[name], tensor), name


def test_the_model_without_gates_can_go_on_too(tiny, trained, tmp_path):
    tree = {**tiny().tree(), "model": None, "init_from": str(trained)}
    result = train(RunConfig.parse(tree), tmp_path / "on")
    first = train(tiny({"model": {"layer": {"gates": []}}}), trained)
    assert result.metrics["val_loss"] < first.metrics["val_loss"]
    assert not any(name.startswith("gate_") for name in result.metrics)
    cfg = RunConfig.parse({**tree, "optim": PHASES})
    with pytest.raises(ConfigError, match="no group of this model trains before step 3"):
        train(cfg, tmp_path / "stuck")
