import json

import pytest
from typer.testing import CliRunner

from gatelm.cli.study.commands import app
from gatelm.config import ConfigError
from gatelm.config.load import dump


@pytest.fixture
def study(tmp_path):
    """A study with one arm's numbers."""
    runs = [
        {
            "part": "text", "arm": arm, "axes": {}, "seed": seed, "status": "finished",
            "metrics": {"val_loss": loss + 0.01 * seed, "gate_mean": 0.1}, "seconds": 1.0,
        }
        for arm, loss in (("none", 3.0), ("sdpa-head", 2.0))
        for seed in range(3)
    ]  # fmt: skip
    results = {
        "study": "own", "size": None, "command": "gatelm study run own.yaml",
        "parts": {"text": {"confidence": 0.95}}, "runs": runs, "comparisons": [],
    }  # fmt: skip
    (tmp_path / "results.json").write_text(json.dumps(results))
    return tmp_path


@pytest.fixture
def registry(tmp_path):
    claims = {
        "loss": {"statement": "the gate wins", "source": "me", "published": "2 against 3",
                 "test": {"kind": "compare", "arm": "sdpa-head"}, "studies": ["own"]},
        "untested": {"statement": "of layer 21", "source": "me", "why": "one model"},
    }  # fmt: skip
    path = tmp_path / "claims.yaml"
    path.write_text(dump({"claims": claims}))
    return path


def run(*words):
    return CliRunner().invoke(app, ["claims", *map(str, words)])


def test_verdicts_of_a_folder(study, registry):
    shown = run(study, "--registry", registry)
    assert shown.exit_code == 0
    text = " ".join(shown.stdout.split())
    assert "reproduced loss the gate wins (me, printed: 2 against 3)" in text
    assert "text: sdpa-head minus none: -1.000 [-1.000, -1.000] (95 %, 3 seeds): lower" in text
    assert "1 reproduced figures from: gatelm study run own.yaml" in text
    (entry,) = json.loads(run(study, "--registry", registry, "--json").stdout)
    assert (entry["name"], entry["verdict"]) == ("loss", "reproduced")
    assert entry["commands"] == ["gatelm study run own.yaml"]
    markdown = run(study, "--registry", registry, "--markdown").stdout
    assert markdown.startswith("# Published statements, checked")
    assert "```\ngatelm study run own.yaml\n```" in markdown
    assert "| `loss` | the gate wins (me) | 2 against 3 | text: sdpa-head" in markdown


def test_without_a_folder_every_claim_is_listed(registry):
    text = " ".join(run("--registry", registry).stdout.split())
    assert "the gate wins (me; printed: 2 against 3) own (any size)" in text
    assert "not testable at this scale" in text
    assert "2 claims" in text
    tree = json.loads(run("--registry", registry, "--json").stdout)
    assert tree["loss"]["studies"] == ["own"]
    assert tree["untested"]["finding"]["verdict"] == "not testable at this scale"


def test_a_folder_without_results_is_refused(tmp_path, registry):
    result = run(tmp_path, "--registry", registry)
    assert isinstance(result.exception, ConfigError)
