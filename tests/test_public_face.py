"""The names that `import gatelm` offers, and the page that lists them."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import gatelm

SOURCE = Path(gatelm.__file__)
REPOSITORY = SOURCE.parents[2]


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_gatelm_loads_nothing_heavy():
    code = "import gatelm, sys; dir(gatelm); print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in in_a_new_process(code).split()}
    assert not loaded & {"torch", "transformers", "numpy", "pydantic", "scipy", "altair", "yaml"}


def test_every_public_name_is_the_one_that_it_stands_for():
    assert set(gatelm.__all__) == set(gatelm._WHERE)
    assert set(gatelm.__all__) <= set(dir(gatelm))
    for name, where in gatelm._WHERE.items():
        module, _, attribute = where.partition(":")
        assert getattr(gatelm, name) is getattr(import_module(module), attribute)
        # a package of the same name would take the place of the name once it is imported
        assert not (SOURCE.parent / name).exists()
    with pytest.raises(AttributeError, match="module 'gatelm' has no attribute 'nothing'"):
        gatelm.nothing  # noqa: B018


def test_type_checkers_see_the_same_names():
    tree = ast.parse(SOURCE.read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == gatelm._WHERE


def test_a_public_name_is_loaded_with_what_it_needs_alone():
    code = "import gatelm, sys; gatelm.ModelConfig; gatelm.GATE_PRESETS; print(*sys.modules)"
    loaded = set(in_a_new_process(code).split())
    assert "gatelm.nn.model" in loaded
    assert not loaded & {"transformers", "gatelm.train.trainer", "gatelm.analysis"}


def test_the_api_page_is_made_from_the_docstrings_of_today():
    script = REPOSITORY / "docs" / "make_api.py"
    command = [sys.executable, str(script), "--print"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (script.parent / "api.md").read_text() == made, "run python docs/make_api.py"
    listed = {line[5:-1] for line in made.splitlines() if line.startswith("### `")}
    assert listed == set(gatelm.__all__)


def test_the_example_of_the_api_page_runs(tmp_path, monkeypatch, capsys):
    page = (REPOSITORY / "docs" / "api.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(21):
        (corpus / f"{number}.txt").write_text(f"Document number {number} is short.\n" * 3)
    small = {
        "data.source": corpus,
        "data.tokenizer.vocab_size": 260,
        "data.seq_len": 16,
        "model.num_layers": 1,
        "train.batch_size": 2,
        "train.eval_sequences": 2,
        "train.precision": "fp32",
        "train.threads": 1,
    }
    overrides = "".join(f', "{path}={value}"' for path, value in small.items())
    assert '"train.total_steps=100"' in example
    code = example.replace('"train.total_steps=100"', '"train.total_steps=1"' + overrides)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATELM_CACHE", str(tmp_path / "cache"))
    exec(code, {})
    assert 0 < float(capsys.readouterr().out) <= 1
