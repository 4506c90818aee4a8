import random
import time

import pytest
import tokenizers

from gatelm.data.errors import DataError
from gatelm.data.tokenizer import Coverage, byte_tokenizer, load_tokenizer, train_bpe

TEXTS = [
    "the cat sat on the mat, the cat sat on the hat\n" * 20,
    "def f(x):\n    return x  # naïve 你好 🦜\n",
    "",
    "\r\n\t \x00 end",
    "before <|bos|> between <|eos|> after",
]


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(TEXTS, 300)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_round_trip(kind, text, bpe):
    tokenizer = bpe if kind == "bpe" else byte_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_are_the_utf8_bytes():
    tokenizer = byte_tokenizer()
    for text in TEXTS:
        assert tokenizer.encode(text).tolist() == list(text.encode())
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id) == (258, 256, 257)


@pytest.mark.parametrize("text", TEXTS)
def test_the_fast_path_for_bytes_equals_the_library(text):
    inner = tokenizers.Tokenizer.from_str(byte_tokenizer().to_json())
    inner.encode_special_tokens = True
    assert byte_tokenizer().encode(text).tolist() == inner.encode(text).ids


def test_bpe_has_the_asked_size_and_merges(bpe):
    assert bpe.vocab_size == 300
    assert len(bpe.encode("the cat")) < len("the cat")
    assert (bpe.bos_id, bpe.eos_id) == (0, 1)


def test_training_twice_gives_the_same(bpe):
    assert train_bpe(iter(TEXTS), 300).fingerprint == bpe.fingerprint
    assert train_bpe(TEXTS, 290).fingerprint != bpe.fingerprint


@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_literal_specials_stay_text(kind, bpe):
    tokenizer = bpe if kind == "bpe" else byte_tokenizer()
    ids = tokenizer.encode(TEXTS[-1]).tolist()
    assert tokenizer.bos_id not in ids
    assert tokenizer.eos_id not in ids


def test_literal_specials_stay_text_after_saving(bpe, tmp_path):
    bpe.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.encode(TEXTS[-1]).tolist() == bpe.encode(TEXTS[-1]).tolist()
    assert loaded.fingerprint == bpe.fingerprint
    assert (loaded.bos, loaded.eos) == ("<|bos|>", "<|eos|>")


def test_decode_leaves_specials_out_and_display_shows_them(bpe):
    ids = [bpe.bos_id, *bpe.encode("the cat"), bpe.eos_id]
    assert bpe.decode(ids) == "the cat"
    assert bpe.display(ids)[0] == "<|bos|>"
    assert "".join(bpe.display(ids)[1:-1]) == "the cat"
    assert byte_tokenizer().display(list("é\n".encode())) == ["\\xc3", "\\xa9", "\n"]
    assert byte_tokenizer().display([400]) == ["<400>"]


def write_tokenizer(path, specials):
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, "[UNK]"))
    inner.add_special_tokens(specials)
    inner.enable_truncation(2)
    inner.enable_padding(length=8)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.save(str(path))
    return path


def test_a_file_without_bos_uses_its_eos(tmp_path):
    loaded = load_tokenizer(write_tokenizer(tmp_path / "t.json", ["</s>"]))
    assert loaded.bos == loaded.eos == "</s>"
    named = load_tokenizer(tmp_path / "t.json", bos="a")
    assert (named.bos_id, named.eos_id) == (0, 2)


def test_truncation_and_padding_of_a_file_are_off(tmp_path):
    loaded = load_tokenizer(write_tokenizer(tmp_path / "t.json", ["</s>"]))
    assert loaded.encode("a a a a a").tolist() == [0] * 5


def test_bad_files_are_one_sentence(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        load_tokenizer(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{"model": 3}')
    with pytest.raises(DataError, match=r"bad\.json: not a tokenizer\.json"):
        load_tokenizer(tmp_path / "bad.json")
    path = write_tokenizer(tmp_path / "t.json", ["<custom>"])
    with pytest.raises(DataError, match=r"name them with data\.tokenizer\.bos"):
        load_tokenizer(path)
    with pytest.raises(DataError, match="bos '<s>' is not in the vocabulary"):
        load_tokenizer(path, bos="<s>")


def lossy(path, unknown=None):
    """Letters of "the end" and "i" alone; no byte fallback."""
    pieces = ["i", "t", "h", "e", "n", "d", "the", "end", "th", "en", "<s>"]
    vocab = {piece: number for number, piece in enumerate([*pieces, *([unknown] * bool(unknown))])}
    merges = [("t", "h"), ("th", "e"), ("e", "n"), ("en", "d")]
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges, unk_token=unknown))
    inner.save(str(path))
    return load_tokenizer(path)


def test_dropped_characters_are_counted(tmp_path):
    """The library keeps seven of twelve characters of this text."""
    tokenizer = lossy(tmp_path / "t.json")
    assert tokenizer.decode(tokenizer.encode("Hi, the end.")).replace(" ", "") == "itheend"
    found = tokenizer.coverage(["Hi, the end.", "the end"])
    assert found == Coverage(characters=19, dropped_characters=6, tokens=5)
    with pytest.raises(DataError, match=r"t.txt: .* drops 6 of 19 characters \(31.58%\)"):
        found.check(0.3, "t.txt", "data.max_lost")
    with pytest.warns(UserWarning, match="drops 6 of 19"):
        found.check(0.4, "t.txt", "data.max_lost")


def test_unknown_tokens_are_counted(tmp_path):
    found = lossy(tmp_path / "t.json", "<unk>").coverage(["Hi, the end."])
    assert (found.dropped_characters, found.unknown_tokens, found.tokens) == (0, 5, 8)
    with pytest.raises(DataError, match=r"5 of 8 tokens \(62.50%\) are its unknown token"):
        found.check(0.5, "t", "--max-lost")


@pytest.mark.parametrize("kind", ["wordlevel", "unigram"])
def test_white_space_between_words_is_not_lost(tmp_path, kind):
    models = tokenizers.models
    model = (
        models.WordLevel({"the": 0, "end": 1, "[UNK]": 2, "<s>": 3}, "[UNK]")
        if kind == "wordlevel"
        else models.Unigram([("the", -1.0), ("end", -1.0), ("<unk>", -9.0), ("<s>", -9.0)], 2)
    )
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.save(str(tmp_path / "t.json"))
    found = load_tokenizer(tmp_path / "t.json").coverage(["the  end\nthe", "the zz"])
    assert (found.dropped_characters, found.unknown_tokens, found.tokens) == (0, 1, 5)


def test_byte_tokenizers_lose_nothing(bpe):
    assert bpe.coverage(TEXTS) == byte_tokenizer().coverage(TEXTS) == Coverage()


def test_a_long_word_is_learned_in_linear_time():
    """Twelve times as much text of one word takes about as many times as long."""
    word = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=1_200_000))
    times = []
    for length in (100_000, 1_200_000):
        began = time.process_time()
        trained = train_bpe([word[:length]], 1000)
        times.append(time.process_time() - began)
    assert times[1] < 40 * times[0]
    assert trained.decode(trained.encode(word)) == word
    assert "Split" not in trained.to_json()
