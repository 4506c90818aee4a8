import json

import numpy as np
import pytest
from typer.testing import CliRunner

from gatelm.cli.study.commands import app
from gatelm.config import ConfigError


@pytest.fixture
def files(tmp_path):
    """A curve with two spikes 30 steps apart and one without; both 500 points, 10 steps apart."""
    noise = np.random.default_rng(0).uniform(-0.02, 0.02, 500)
    paths = []
    for name, spikes in (("plain", []), ("spiky", [300, 303])):
        values = 2.0 + noise
        values[spikes] += [1.0, 3.0][: len(spikes)]
        path = tmp_path / f"{name}.csv"
        rows = [f"{10 * i},{v}" for i, v in enumerate(values)]
        path.write_text("\n".join(["step,loss", *rows]))
        paths.append(str(path))
    return paths


def run(*words):
    return CliRunner().invoke(app, ["curves", *words])


def test_curves_side_by_side(files):
    shown = run(*files, "--rule", "olmo-core", "--rule", "palm")
    assert shown.exit_code == 0
    text = " ".join(shown.stdout.split())
    assert "plain.csv spiky.csv" in text
    assert "olmo-core: flags 0 of 500 2 of 500" in text
    assert "olmo-core: events 0 1" in text
    assert "palm: flags 0 of 500 2 of 500" in text
    assert "largest excess 0." in text
    assert "3.0" in text
    assert "at step 3,030" in text


def test_json_and_parameters(files):
    words = ["--from-step", "1000", "--merge-steps", "0", "--json"]
    plain, spiky = json.loads(run(*files, *words).stdout)
    assert (plain["file"], plain["points"], plain["last_step"]) == ("plain.csv", 500, 4990)
    (rule,) = spiky["rules"]
    assert (rule["points"], rule["flags"], len(rule["events"])) == (400, 2, 2)
    assert rule["events"][1]["peak_step"] == 3030
    loose = json.loads(run(*files, "--threshold", "1.2", *words).stdout)
    assert loose[0]["rules"][0]["flags"] > 0
    again = json.loads(run(files[0], files[0], "--json").stdout)
    assert [c["file"] for c in again] == ["plain.csv", "plain.csv (2)"]


def test_a_small_chart(files, tmp_path):
    path = tmp_path / "c.svg"
    assert run(*files, "--chart", str(path)).exit_code == 0
    text = path.read_text()
    assert text.startswith("<svg")
    assert "spiky.csv" in text
    assert len(text) < 60_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rule", "olmocore"], "did you mean 'olmo-core'?"),
        (["--window", "1"], "2 at least"),
        (["--chart", "c.png"], "only .svg files"),
        (["--column", "los"], "did you mean 'loss'?"),
    ],
)
def test_mistakes_are_one_sentence(files, words, message):
    result = run(*files, *words)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
