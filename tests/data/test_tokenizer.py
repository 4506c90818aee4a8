import pytest
import tokenizers

from gatelm.data.errors import DataError
from gatelm.data.tokenizer import byte_tokenizer, load_tokenizer, train_bpe

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
