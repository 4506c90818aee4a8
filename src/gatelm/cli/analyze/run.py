"""The work of `gatelm analyze`: open models, cut text, estimate the cost, analyse, write files."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gatelm.cli.progress import Bars
from gatelm.config import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from gatelm.analysis.probe.layout import TokenBatch
    from gatelm.analysis.probe.protocol import Probe, TextTokenizer
    from gatelm.analysis.statistics.maps import Decode
    from gatelm.analysis.windows import Windows

DEFAULT_TEXT = "sotu"
MAX_MAPS = 36
STREAMED_WINDOWS = 4
"""Length of a streamed text in windows."""


@dataclass(frozen=True)
class AnalyzeOptions:
    """The command's options."""

    text: str | None = None
    seq_len: int = 512
    samples: int = 16
    bos: Literal["auto", "always", "never"] = "auto"
    layers: str | None = None
    device: str = "auto"
    dtype: str = "float32"
    unknown_tensors: Literal["refuse", "ignore"] = "refuse"
    max_lost: float = 0.01
    extras: tuple[str, ...] = ()


def run(
    places: Sequence[str], options: AnalyzeOptions, out: Path | None
) -> tuple[dict[str, Any], Path]:
    """Analyse each model in turn, and write report.html, analysis.json and two CSV files.

    Raises:
        ConfigError: a model cannot be opened, the text does not fit, or memory would not do.
    """
    from gatelm.cli.analyze.files import RESULTS, WRITTEN, write_results
    from gatelm.cli.console import Console
    from gatelm.io.folders import refuse_foreign
    from gatelm.report.model.page import write_analysis
    from gatelm.report.page import slug

    console = Console(stderr=True, highlight=False)
    text = _Text(options)
    if out is not None:
        refuse_foreign(out, "an analysis", RESULTS, WRITTEN)
    if options.text is not None:
        text.read()
    entries = [_analyze(place, text, options, console) for place in places]
    _name_apart(entries, places)
    folder = out or Path("analysis") / slug(entries[0]["name"])
    refuse_foreign(folder, "an analysis", RESULTS, WRITTEN)
    results = _results(entries, text, options)
    folder.mkdir(parents=True, exist_ok=True)
    write_results(results, folder)
    return results, write_analysis(results, folder)


def _analyze(place: str, text: _Text, options: AnalyzeOptions, console: Console) -> dict[str, Any]:
    from gatelm.analysis.measure import analyze_batches
    from gatelm.hf.load import open_model

    _say(console, f"{place}: opening")
    started = time.perf_counter()
    probe, tokenizer = open_model(
        place,
        device=options.device,
        dtype=options.dtype,
        unknown_tensors=options.unknown_tensors,
    )
    layers = _layers(options.layers, probe)
    windows: Windows | None = None
    if tokenizer is None:
        batches, first, decode = text.own(place)
    else:
        windows = text.windows(tokenizer, probe)
        batches, first, decode = list(windows.batches()), asdict(windows.first), tokenizer.display
    _say(console, f"  rows begin with {first['text']!r} (id {first['id']}): {first['reason']}")
    if windows is not None:
        _announce(probe, windows, console)
    bytes_per_token = None if windows is None else windows.bytes_per_token
    found = analyze_batches(
        probe,
        _with_progress(batches, console),
        bytes_per_token=bytes_per_token,
        decode=decode,
        max_maps=MAX_MAPS,
        detail="full",
        layers=layers,
    )
    entry: dict[str, Any] = {"metrics": found.metrics(), "analysis": found.to_json()}
    if "intervene" in options.extras:
        entry["interventions"] = _interventions(probe, batches, layers, console)
    if "streaming" in options.extras:
        ids = [] if tokenizer is None else text.long(tokenizer)
        entry["streaming"] = _streaming(probe, ids, options, console)
    return {
        "name": _label(place, probe.name),
        "place": place,
        "family": probe.family,
        "parameters": probe.parameters,
        "dtype": str(probe.dtype).removeprefix("torch."),
        "device": str(probe.device),
        "unread": {str(layer): reason for layer, reason in probe.unread.items()},
        "gate_note": probe.gate_note,
        "first_token": first,
        **entry,
        "seconds": time.perf_counter() - started,
    }


def _layers(text: str | None, probe: Probe) -> list[int] | None:
    """Parse the layers of "0,5,-1" or of a slice such as "0:12:2"."""
    if text is None:
        return None
    from gatelm.nn.model import LayerOverride

    count = probe.num_layers
    try:
        if ":" in text:
            found = LayerOverride(layers=text, set={}).indices(count)
        else:
            found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f'--layers {text}: expected "0,5,-1" or a slice such as "0:12:2"'
        ) from None
    wrong = [layer for layer in found if not -count <= layer < count]
    if wrong or not found:
        what = f"there is no layer {wrong[0]}" if wrong else "no layer is left"
        raise ConfigError(f"--layers {text}: {what}; {probe.name} has {count}, from 0")
    return sorted({layer % count for layer in found})


def _announce(probe: Probe, windows: Windows, console: Console) -> None:
    """Print the expected time and memory, and refuse an analysis that cannot fit."""
    from gatelm.analysis.estimate import estimate
    from gatelm.nn.device import available_bytes
    from gatelm.study.results.numbers import duration

    expected = estimate(probe, windows)
    free = available_bytes(probe.device)
    _say(
        console,
        f"  {probe.parameters:,} parameters, {probe.num_layers} layers: about "
        f"{duration(expected.seconds)} for {len(windows.tokens)} rows of "
        f"{windows.tokens.shape[1]} tokens, {_bytes(expected.working_bytes)} beside the weights' "
        f"{_bytes(expected.weights_bytes)} (the attention matrices of one row alone would take "
        f"{_bytes(expected.matrices_bytes)})",
    )
    if free is not None and expected.working_bytes > free:
        raise ConfigError(
            f"{probe.name}: about {_bytes(expected.working_bytes)} are needed and "
            f"{_bytes(free)} are free; use a smaller --seq-len or --layers"
        )


def _with_progress(batches: Sequence[TokenBatch], console: Console) -> Iterator[TokenBatch]:
    """Show a bar with the time left, or without a terminal a line about every ten seconds."""
    from gatelm.study.results.numbers import duration

    total = len(batches)
    started = time.perf_counter()
    with Bars(console, indent="  ") as bars:
        bars.show("measuring", 0, total)
        bars.line_is_due(started)  # so that the first line comes ten seconds later
        for done, batch in enumerate(batches, start=1):
            yield batch
            bars.show("measuring", done, total)
            now = time.perf_counter()
            if not bars.moving and done < total and bars.line_is_due(now):
                left = (now - started) / done * (total - done)
                _say(console, f"  {done} of {total} batches, about {duration(left)} left")


def _interventions(
    probe: Probe, batches: Sequence[TokenBatch], layers: list[int] | None, console: Console
) -> list[dict[str, Any]]:
    from gatelm.analysis.causal import interventions

    def tell(name: str, done: int, total: int) -> None:
        _say(console, f"  intervention {done + 1} of {total}: {name}")

    effects = interventions(probe, batches, layers=layers, progress=tell)
    return [effect.to_json() for effect in effects]


def _streaming(
    probe: Probe, ids: list[int], options: AnalyzeOptions, console: Console
) -> dict[str, Any]:
    import torch

    from gatelm.hf.probe.handover import hand_over
    from gatelm.inference.streaming import compare_first_tokens

    if not ids:
        return {"error": "a model without a tokenizer has no long text"}
    window = max(8, options.seq_len // 2)
    tokens = torch.tensor(ids[: window * STREAMED_WINDOWS * 2])
    _say(console, f"  streaming {len(tokens)} tokens through a cache of {window}")
    try:
        with Bars(console) as bars:
            table = compare_first_tokens(
                hand_over(probe), tokens, window_tokens=window, reference=probe, progress=bars.show
            )
    except ValueError as error:
        return {"error": str(error)}
    return table.to_json()


class _Text:
    """The text of an analysis, which is read once and cut anew for every tokenizer."""

    def __init__(self, options: AnalyzeOptions):
        self._options = options
        self._documents: list[str] | None = None
        self.source = options.text or DEFAULT_TEXT
        self.description = ""

    def windows(self, tokenizer: TextTokenizer, probe: Probe) -> Windows:
        """Cut rows for one model; ids outside its vocabulary are an error."""
        from dataclasses import replace

        from gatelm.analysis.windows import cut_windows
        from gatelm.hf.probe.tokenizer import checked_coverage

        options = self._options
        coverage = checked_coverage(tokenizer, self.read(), options.max_lost, probe.name)
        windows = cut_windows(
            self.read(),
            tokenizer,
            seq_len=options.seq_len,
            samples=options.samples,
            bos=options.bos,
        )
        largest = int(windows.tokens.max())
        if largest >= probe.vocab_size:
            raise ConfigError(
                f"{probe.name}: the tokenizer gives id {largest}, but the model has only "
                f"{probe.vocab_size} tokens: model and tokenizer do not belong together"
            )
        return replace(windows, bytes_per_token=windows.bytes_per_token * (1 - coverage.dropped))

    def long(self, tokenizer: TextTokenizer) -> list[int]:
        """Encode the longest document."""
        from gatelm.analysis.windows import first_token

        ids = list(tokenizer.encode(max(self.read(), key=len)))
        bos_id = first_token(tokenizer, self._options.bos).bos_id
        return ids if bos_id is None or ids[:1] == [bos_id] else [bos_id, *ids]

    def own(self, place: str) -> tuple[list[TokenBatch], dict[str, Any], Decode]:
        """Held-out batches of the run from which a model without a tokenizer comes."""
        from gatelm.config.load import read_yaml
        from gatelm.data.source import build_source
        from gatelm.train.config import RunConfig

        if self._options.text is not None:
            raise ConfigError(
                f"{place}: the model has no tokenizer, so it cannot read --text; leave it out"
            )
        path = Path(place).expanduser()
        found = next((p for p in (path, path.parent) if (p / "config.yaml").is_file()), None)
        if found is None:
            raise ConfigError(
                f"{place}: the model has no tokenizer; name a run folder, whose own held-out data "
                "is then used"
            )
        file = found / "config.yaml"
        cfg = RunConfig.parse(read_yaml(file), str(file))
        source = build_source(cfg.data, cfg.seed)
        self.source = "the run's own held-out data"
        rows = max(1, min(self._options.samples, 2048 // source.seq_len))
        batches: list[TokenBatch] = list(source.validation(rows, self._options.samples))
        first = int(batches[0].tokens[0, 0])
        reason = "as in training (--bos does not apply)"
        named = {"id": first, "text": source.decode_tokens([first])[0], "reason": reason}
        return batches, named, source.decode_tokens

    def read(self) -> list[str]:
        """Read the documents.

        Raises:
            ConfigError: the text cannot be read.
        """
        if self._documents is None:
            from gatelm.data.holdout import read_texts

            self._documents, which = read_texts(
                self.source, option="--text", trainer="gatelm's own training"
            )
            self.description = (
                f"Text: {self.source}, {which}; rows of {self._options.seq_len} tokens spread "
                "evenly over it, none across two documents."
            )
        return self._documents


def _results(entries: list[dict[str, Any]], text: _Text, options: AnalyzeOptions) -> dict[str, Any]:
    from importlib.metadata import version

    import gatelm

    libraries = {name: version(name) for name in ("torch", "transformers")}
    python = ".".join(map(str, sys.version_info[:3]))
    return {
        "gatelm_version": gatelm.__version__,
        "command": shlex.join(["gatelm", *sys.argv[1:]]),
        "versions": {"gatelm": gatelm.__version__, "python": python, **libraries},
        "text": {
            "source": text.source,
            "description": text.description,
            "seq_len": options.seq_len,
            "samples": options.samples,
            "bos": options.bos,
        },
        "models": entries,
    }


def _name_apart(entries: list[dict[str, Any]], places: Sequence[str]) -> None:
    """Make names differ: models of the same name get their folder in it, then a number."""
    names = [entry["name"] for entry in entries]
    for i, (entry, place) in enumerate(zip(entries, places, strict=True)):
        if names.count(entry["name"]) > 1:
            entry["name"] = f"{entry['name']} ({Path(place).parent.name or i + 1})"
    names = [entry["name"] for entry in entries]
    for i, entry in enumerate(entries):
        if names.count(entry["name"]) > 1:
            entry["name"] = f"{entry['name']} #{i + 1}"


def _label(place: str, name: str) -> str:
    """The label of a study's run, by its arm: `sdpa-head, seed 0` for sdpa-head/seed-0-1a2b..."""
    path = Path(place).expanduser().resolve()
    path = path.parent if path.name == "model" else path
    seed = re.fullmatch(r"seed-(\d+)-[0-9a-f]+", path.name)
    return f"{path.parent.name}, seed {seed[1]}" if seed else name


def _say(console: Console, text: str) -> None:
    """Print one line without wrapping it to the terminal's width."""
    console.print(text, soft_wrap=True, markup=False)


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"
