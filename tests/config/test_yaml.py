"""What YAML texts stand for, and what they may not do."""

import time

import pytest

from gatelm.config.yaml import MAX_DEPTH, YamlError, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("no", "no"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("1:30", "1:30"),
        ("010", 10),
        ("0o10", 8),
        ("0x10", 16),
        ("1_000", 1000),
        ("1e-3", 0.001),
        ("3.0e-3", 0.003),
        ("-.5", -0.5),
        (".inf", float("inf")),
        ("null", None),
        ("~", None),
        ("", None),
        ("2026-12-01", "2026-12-01"),
        ("'1'", "1"),
        ("[a, 1, {b: c}]", ["a", 1, {"b": "c"}]),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x {b: 1}\nc: {<<: *x, d: 2}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
    ],
)
def test_values(text, value):
    assert parse(text) == value
    assert type(parse(text)) is type(value)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' stands there twice"),
        ("m:\n  x: 1\n  x: 2", "line 3: the key 'x' stands there twice"),
        ("[a, b", "line 1, column 6"),
        ("a: b: c", "line 1, column 5"),
        ("a: &a [*a]", "line 1: an alias that contains itself"),
        (BOMB, "values, aliases written out"),
        ("[" * 3000, f"more than {MAX_DEPTH} levels deep"),
        ("{a: " * 3000 + "1" + "}" * 3000, f"more than {MAX_DEPTH} levels deep"),
        ("9" * 5000, "an integer of 5000 digits"),
        ("x: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("? {a: 1}\n: b", "a key must be plain text"),
        ("a: \x00", "special characters are not allowed"),
        ("a: 1\n---\nb: 2", "expected a single document"),
    ],
)
def test_refusals_say_where_and_come_at_once(text, said):
    started = time.process_time()
    with pytest.raises(YamlError, match=None) as caught:
        parse(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.process_time() - started < 5


def test_true_is_no_number_and_nothing_is_nan():
    from gatelm.config import ConfigError
    from gatelm.train.config import RunConfig, TrainConfig

    for text, said in (
        ({"total_steps": True}, "total_steps: true is no value for this key"),
        ({"total_steps": 1, "spike_threshold_std": float("nan")}, "finite number"),
        ({"total_steps": 1, "spike_policy": False}, "spike_policy: false is no value"),
    ):
        with pytest.raises(ConfigError, match=said):
            TrainConfig.parse(text)
    with pytest.raises(ConfigError, match="finite number"):
        RunConfig.parse({"optim": {"lr": float("inf")}})
