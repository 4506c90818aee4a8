"""Seeded mutations of valid inputs: six groups, each a case with files and a command line."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from assets import RUN, STUDY, TEXT, write_gguf, write_hf_folder

GROUPS = ("run", "study", "hf", "gguf", "data", "arguments")

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e-40, 1e40, float("nan"), float("inf")),
    *(2**31, 2**63, 2**64, -(2**63) - 1, 10**400, "", "x", "auto", "off", "null", "1:30", "1e-3"),
    *("../../x", "/etc/passwd", "a\0b", "\x1b[31mred", "ünïcode ☃", "x" * 5000, "{", "sdpa-haed"),
    *([], {}, [None], [[]], [1, 2, 3], {"kind": "x"}, {"": 1}, [{}], {"a": {"b": {"c": 1}}}),
)
LINES = (
    *(
        "  - - -",
        "a: &a [*a]",
        "x: !!python/object/apply:os.system [ls]",
        "? {a: 1}\n: b",
        "\t tab: 1",
    ),
    *(
        "<<: *nothing",
        "a: b: c",
        "%YAML 9.9",
        "---",
        "...",
        "a: [1, 2",
        '"',
        "\x00",
        "\ufeff",
        "a: |",
    ),
)


@dataclass(frozen=True)
class Case:
    """What is run in an empty folder after `prepare` has put the mutated input there."""

    name: str
    prepare: Callable[[Path], None]
    arguments: tuple[str | bytes, ...]


class Assets:
    """The valid inputs, made once."""

    def __init__(self, root: Path) -> None:
        self.hf = [write_hf_folder(root / kind, kind) for kind in ("llama", "qwen3")]
        self.gguf = write_gguf(root / "tiny.gguf")


def cases(group: str, number: int, seed: int, assets: Assets) -> Iterator[Case]:
    """`number` cases of a group; case i depends on (group, seed, i) alone."""
    make = {
        "run": run_case,
        "study": study_case,
        "hf": hf_case,
        "gguf": gguf_case,
        "data": data_case,
        "arguments": arguments_case,
    }[group]
    for index in range(number):
        rng = random.Random(f"{group}-{seed}-{index}")
        prepare, arguments = make(rng, assets)
        yield Case(f"{group}-{seed}-{index}", prepare, arguments)


Made = tuple[Callable[[Path], None], tuple[str | bytes, ...]]


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a tree, inner ones included."""
    if path:
        yield path
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in items:
        yield from leaves(value, (*path, key))


def mutate_tree(tree: Any, rng: random.Random) -> Any:
    """A copy with one to three values replaced, removed, renamed or wrapped."""
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.choice((1, 1, 2, 3))):
        paths = list(leaves(tree))
        if not paths:
            return rng.choice(VALUES)
        *parents, last = rng.choice(paths)
        node = tree
        for step in parents:
            node = node[step]
        how, old = rng.randrange(6), node[last]
        if how == 0 and isinstance(old, int | float):
            node[last] = rng.choice((old + 1, old - 1, 2 * old, old // 2, 10 * old))
        elif how <= 3:
            node[last] = rng.choice(VALUES)
        elif how == 4:
            del node[last]
        elif isinstance(node, dict):
            node[rng.choice(("x", "", "Kind", str(last) + "s", "a.b"))] = node.pop(last)
        else:
            node[last] = [node[last]]
    return tree


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Cut, flipped, repeated or with bytes put in."""
    data = bytearray(data)
    how = rng.randrange(5)
    if how == 0:
        return bytes(data[: rng.randrange(len(data) + 1)])
    if how == 1:
        for _ in range(rng.choice((1, 4, 32))):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif how == 2:
        at = rng.randrange(len(data))
        data[at:at] = data[at : at + rng.randrange(1, 64)] * rng.choice((1, 100))
    elif how == 3:
        at = rng.randrange(len(data))
        data[at:at] = rng.choice((b"\x00", b"\xff\xfe", b"\xc3\x28", b"\n", b"}", b"\xf0\x9f"))
    else:
        at = rng.randrange(len(data))
        del data[at : at + rng.randrange(1, 64)]
    return bytes(data)


def recipe(tree: Any, rng: random.Random) -> bytes:
    """YAML text of a mutated recipe; now and then text that is hardly YAML."""
    how = rng.randrange(10)
    if how == 0:
        return ("{a: " * 3000 + "1" + "}" * 3000).encode()
    if how == 1:
        text = "a: &a [x,x,x,x,x,x,x,x,x]\n"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True):
            text += f"{new}: &{new} [" + ",".join([f"*{old}"] * 9) + "]\n"
        return text.encode()
    if how == 2:
        return mutate_bytes(yaml.safe_dump(tree, sort_keys=False).encode(), rng)
    if how == 3:
        lines = yaml.safe_dump(tree, sort_keys=False).splitlines()
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(LINES))
        return "\n".join(lines).encode("utf-8", "surrogatepass")
    if how == 4:
        lines = yaml.safe_dump(tree, sort_keys=False).splitlines()
        at = rng.randrange(len(lines))
        lines.insert(at, lines[rng.randrange(len(lines))])
        return "\n".join(lines).encode()
    return yaml.safe_dump(mutate_tree(tree, rng), sort_keys=False, allow_unicode=True).encode()


def run_case(rng: random.Random, _: Assets) -> Made:
    text = recipe(RUN, rng)
    verb = rng.choice((("train",), ("train",), ("info",), ("config", "show")))
    end = ("--out", "out") if verb == ("train",) else ()
    return lambda folder: _write(folder / "r.yaml", text), (*verb, "r.yaml", *end)


def study_case(rng: random.Random, _: Assets) -> Made:
    text = recipe(STUDY, rng)
    verb = rng.choice(("plan", "plan", "plan", "claims"))
    end = ("--out", "out") if verb == "plan" else ()
    return lambda folder: _write(folder / "s.yaml", text), ("study", verb, "s.yaml", *end)


def hf_case(rng: random.Random, assets: Assets) -> Made:
    source = rng.choice(assets.hf)
    seed = rng.randrange(2**32)

    def prepare(folder: Path) -> None:
        own = random.Random(seed)
        shutil.copytree(source, folder / "m")
        file = (
            folder
            / "m"
            / own.choice(
                (
                    *("config.json", "config.json", "model.safetensors", "tokenizer.json"),
                    *("tokenizer_config.json", "generation_config.json"),
                )
            )
        )
        if file.suffix == ".json" and own.random() < 0.8:
            tree = mutate_tree(json.loads(file.read_text(encoding="utf-8")), own)
            file.write_text(json.dumps(tree), encoding="utf-8")
        elif file.suffix == ".safetensors" and own.random() < 0.6:
            mutate_tensors(file, own)
        else:
            file.write_bytes(mutate_bytes(file.read_bytes(), own))
        _write(folder / "t.txt", TEXT.encode())

    return prepare, reading_command(rng, "m")


def mutate_tensors(file: Path, rng: random.Random) -> None:
    """NaN, a missing, renamed, added or wrongly shaped tensor."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    name = rng.choice(sorted(tensors))
    how = rng.randrange(5)
    if how == 0:
        tensors[name] = torch.full_like(tensors[name], float("nan"))
    elif how == 1:
        del tensors[name]
    elif how == 2:
        tensors[name + "_x"] = tensors.pop(name)
    elif how == 3:
        tensors["model.layers.0.self_attn.g_proj.weight"] = torch.zeros(4, 32)
    else:
        tensors[name] = tensors[name].flatten()[:-1].clone()
    save_file(tensors, file, metadata={"format": "pt"})


def gguf_case(rng: random.Random, assets: Assets) -> Made:
    seed = rng.randrange(2**32)

    def prepare(folder: Path) -> None:
        own = random.Random(seed)
        data = assets.gguf.read_bytes()
        if own.random() < 0.5:
            names = (b"llama.block_count", b"llama.attention.head_count", b"llama.context_length",
                     b"llama.rope.freq_base", b"llama.embedding_length")  # fmt: skip
            at = data.index(own.choice(names))
            at += data[at:].index(b"\x00\x00\x00") + 3
            value = struct.pack("<I", own.choice((0, 1, 3, 7, 2**31, 2**32 - 1)))
            data = data[:at] + value + data[at + 4 :]
        else:
            data = mutate_bytes(data[:20_000], own) + data[20_000:]
        _write(folder / "m.gguf", data)
        _write(folder / "t.txt", TEXT.encode())

    return prepare, reading_command(rng, "m.gguf")


def reading_command(rng: random.Random, model: str) -> tuple[str, ...]:
    return rng.choice(
        (
            ("generate", model, "--prompt", "Fellow", "--max-new-tokens", "3", "--greedy"),
            ("eval", model, "--data", "t.txt", "--seq-len", "32"),
            (
                "analyze",
                model,
                "--text",
                "t.txt",
                "--seq-len",
                "16",
                "--samples",
                "2",
                "--out",
                "a",
            ),
            ("convert", model, "out"),
            ("extend", model, "out", "--to", "256"),
        )
    )


def data_case(rng: random.Random, _: Assets) -> Made:
    seed = rng.randrange(2**32)
    kind = rng.choice(("txt", "jsonl", "jsonl", "parquet", "parquet", "folder"))

    def prepare(folder: Path) -> None:
        own = random.Random(seed)
        _data_file(folder / f"d.{kind}", kind, own)

    tokenizer = rng.choice(("byte", "byte", "bpe"))
    options = ("--tokenizer", tokenizer, "--out", "out")
    return prepare, ("data", "prepare", f"d.{kind}", *options)


def _data_file(path: Path, kind: str, rng: random.Random) -> None:
    values = [rng.choice((*VALUES, TEXT, TEXT, TEXT)) for _ in range(rng.choice((1, 5, 40)))]
    if kind == "txt":
        _write(path, mutate_bytes(TEXT.encode(), rng))
    elif kind == "jsonl":
        key = rng.choice(("text", "text", "body"))
        lines = [json.dumps({key: value}) for value in values]
        if rng.random() < 0.4:
            lines.insert(
                rng.randrange(len(lines) + 1), rng.choice(("", "{", "[]", "null", "[" * 5000))
            )
        _write(
            path,
            mutate_bytes("\n".join(lines).encode(), rng)
            if rng.random() < 0.3
            else "\n".join(lines).encode(),
        )
    elif kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        columns = rng.choice(
            (
                {"text": [v if isinstance(v, str) else None for v in values]},
                {"text": list(range(len(values)))},
                {"input_ids": [[1, 2, 3]] * len(values)},
                {"body": ["x"] * len(values)},
                {"text": pyarrow.array([], pyarrow.string())},
            )
        )
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        if rng.random() < 0.4:
            path.write_bytes(mutate_bytes(path.read_bytes(), rng))
    else:
        path.mkdir()
        for number in range(rng.randrange(4)):
            name = rng.choice(
                (f"{number}.txt", f"{number}.jsonl", ".hidden", f"{number}.bin", "ü☃.txt")
            )
            _write(path / name, mutate_bytes(TEXT.encode(), rng))


def arguments_case(rng: random.Random, _: Assets) -> Made:
    odd: tuple[str | bytes, ...] = (
        *(
            "",
            "0",
            "-1",
            "1e400",
            "nan",
            "x",
            "r.yaml",
            ".",
            "/",
            "no/such",
            "m",
            "a\nb",
            "9" * 400,
        ),
        *(
            "99999999999999999999",
            "1:30",
            "[1,2",
            "{}",
            "\x1b[31m",
            "--",
            "-",
            b"\xff\xfe",
            "..",
            "text",
        ),
    )
    templates: tuple[tuple[str, ...], ...] = (
        ("train", "r.yaml", "--set", "KEY=?", "--out", "out"),
        ("train", "r.yaml", "--set", "KEY=?", "--out", "out"),
        ("train", "?"),
        ("train", "r.yaml", "--resume", "?"),
        ("train", "r.yaml", "--out", "?"),
        ("info", "?"),
        ("info", "r.yaml", "--seq-len", "?"),
        ("config", "show", "r.yaml", "--set", "?"),
        ("config", "diff", "r.yaml", "?"),
        ("study", "plan", "s.yaml", "--set", "KEY=?"),
        ("study", "plan", "s.yaml", "--workers", "?"),
        ("study", "plan", "s.yaml", "--flops-per-second", "?"),
        ("study", "report", "?"),
        ("study", "export", "?", "out"),
        ("study", "claims", "?"),
        ("study", "curves", "?"),
        ("data", "prepare", "?"),
        ("data", "prepare", "t.txt", "--vocab-size", "?", "--out", "out"),
        ("data", "prepare", "t.txt", "--tokenizer", "?", "--out", "out"),
        ("data", "prepare", "t.txt", "--set", "?", "--out", "out"),
        ("generate", "m", "--prompt", "?", "--max-new-tokens", "2"),
        ("generate", "m", "--prompt", "Fellow", "--max-new-tokens", "2", "--temperature", "?"),
        ("generate", "m", "--prompt", "Fellow", "--max-new-tokens", "2", "--seed", "?"),
        ("generate", "m", "--prompt", "Fellow", "--max-new-tokens", "2", "--top-p", "?"),
        ("generate", "?", "--prompt", "Fellow", "--max-new-tokens", "2"),
        ("eval", "m", "--data", "?", "--seq-len", "16"),
        ("eval", "m", "--data", "t.txt", "--seq-len", "?"),
        ("eval", "m", "--data", "t.txt", "--by-position", "--lengths", "?"),
        ("eval", "m", "--tasks", "?", "--lengths", "64"),
        ("analyze", "m", "--text", "?", "--samples", "1", "--seq-len", "16", "--out", "a"),
        ("analyze", "m", "--text", "t.txt", "--layers", "?", "--samples", "1", "--seq-len", "16"),
        ("analyze", "m", "--text", "t.txt", "--dtype", "?", "--samples", "1", "--seq-len", "16"),
        ("convert", "m", "out", "--to", "?"),
        ("convert", "m", "?"),
        ("convert", "m", "out", "--add-gate", "?"),
        ("extend", "m", "out", "--to", "?"),
        ("extend", "m", "out", "--to", "256", "--method", "?"),
        ("extend", "m", "out", "--to", "256", "--set", "?"),
    )
    keys = [".".join(map(str, path)) for path in leaves(RUN)]
    keys += ["train.threads", "train.device", "seed", "data.cache", "train.micro_batch_size", "x.y"]
    fill = rng.choice(odd)
    words: list[str | bytes] = []
    for word in rng.choice(templates):
        if word == "?":
            words.append(fill)
        elif word == "KEY=?":
            key = rng.choice(keys)
            words.append(f"{key}={fill}" if isinstance(fill, str) else key.encode() + b"=" + fill)
        else:
            words.append(word)
    asset = _.hf[0]

    def prepare(folder: Path) -> None:
        _write(folder / "r.yaml", yaml.safe_dump(RUN, sort_keys=False).encode())
        _write(folder / "s.yaml", yaml.safe_dump(STUDY, sort_keys=False).encode())
        _write(folder / "t.txt", TEXT.encode())
        if "m" in words or fill == "m":
            shutil.copytree(asset, folder / "m")

    return prepare, tuple(words)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
