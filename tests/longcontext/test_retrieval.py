import pytest

from gatelm.config import ConfigError
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.hf.probe.tokenizer import GatelmTokenizer
from gatelm.longcontext.retrieval import (
    Asked,
    RetrievalRequest,
    ask,
    averages_by_length,
    by_depth,
    effective_length,
    scores,
)
from gatelm.longcontext.tasks.base import Pieces

PIECES = Pieces(GatelmTokenizer(byte_tokenizer()))
REQUEST = RetrievalRequest(("passkey", "variable-tracking"), (400, 800), depths=3, samples=2)


def test_right_answers_score_all_and_empty_ones_nothing():
    everything = ask(REQUEST, PIECES, lambda sample: sample.reply)
    assert len(everything) == 2 * 2 * 3 * 2
    full = scores(everything)
    assert full == {task: {400: 100.0, 800: 100.0} for task in REQUEST.tasks}
    assert effective_length(full, 85.6) == 800
    nothing = scores(ask(REQUEST, PIECES, lambda sample: ""))
    assert nothing == {task: {400: 0.0, 800: 0.0} for task in REQUEST.tasks}
    assert effective_length(nothing, 85.6) is None


def test_every_depth_has_the_same_questions_and_only_needles_have_one():
    asked = ask(REQUEST, PIECES, lambda sample: sample.reply)
    passkeys = [a for a in asked if a.task == "passkey" and a.length_tokens == 400]
    assert [(a.depth, a.index) for a in passkeys] == [
        (depth, index) for depth in (0.0, 50.0, 100.0) for index in (0, 1)
    ]
    assert passkeys[0].references == passkeys[2].references != passkeys[1].references
    chains = [a for a in asked if a.task == "variable-tracking" and a.length_tokens == 400]
    assert [(a.depth, a.index) for a in chains] == [(None, index) for index in range(6)]
    cells = by_depth(asked)
    assert {cell["task"] for cell in cells} == {"passkey"}
    assert len(cells) == 6


def test_a_model_that_forgets_the_beginning_shows_it():
    def answer(sample):
        return sample.reply if sample.depth is None or sample.depth > 20 else "no idea"

    asked = ask(REQUEST, PIECES, answer)
    assert scores(asked)["passkey"][400] == pytest.approx(200 / 3)
    found = {(c["length_tokens"], c["depth"]): c["score"] for c in by_depth(asked)}
    assert found[400, 0.0] == 0.0
    assert found[400, 50.0] == found[800, 100.0] == 1.0


def test_known_answers_are_not_asked_again():
    first = ask(REQUEST, PIECES, lambda sample: sample.reply)
    known = {asked.key: asked for asked in first[:5]}
    new, saved = [], []
    again = ask(
        REQUEST,
        PIECES,
        lambda sample: new.append(sample) or sample.reply,
        known=known,
        save=saved.append,
    )
    assert again == first
    assert len(new) == len(saved) == len(first) - 5


def test_the_effective_length_is_the_largest_above_the_threshold():
    table = {"a": {100: 90.0, 200: 70.0, 400: 86.0}, "b": {100: 90.0, 200: 80.0, 400: 86.0}}
    assert averages_by_length(table) == {100: 90.0, 200: 75.0, 400: 86.0}
    assert effective_length(table, 85.6) == 400
    assert effective_length(table, 86.0) == 100
    assert effective_length(table, 95.0) is None


def test_mistakes_come_before_work():
    def never(sample):
        raise AssertionError("asked")

    with pytest.raises(ConfigError, match="--tasks paskey: not known; did you mean 'passkey'"):
        ask(RetrievalRequest(("paskey",), (400,)), PIECES, never)
    with pytest.raises(ConfigError, match="variable-tracking: 200 tokens are too few"):
        ask(RetrievalRequest(("passkey", "variable-tracking"), (400, 200)), PIECES, never)


def test_an_answer_has_a_key_that_names_it():
    asked = Asked("passkey", 400, 50.0, 1, "", ("7",), 0.0)
    assert asked.key == ("passkey", 400, 50.0, 1)
    assert asked.to_json()["references"] == ("7",)
