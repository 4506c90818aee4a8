"""Convert a model: read, fold, write beside the target, verify, rename. All or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gatelm import __version__
from gatelm.config import ConfigError
from gatelm.config.base import nearest
from gatelm.hf.convert import card, checkpoint, sinks, verify
from gatelm.hf.convert.families.registry import FORMATS, GATELM, targets
from gatelm.hf.convert.formats.fold import RefusedError, fold
from gatelm.hf.convert.formats.format import Format
from gatelm.hf.convert.formats.pieces import State
from gatelm.hf.convert.formats.tensors import to_theirs
from gatelm.hf.convert.formats.write import write_config
from gatelm.hf.convert.planner import targets_that_do
from gatelm.hf.convert.sinks import SinkRequest
from gatelm.hf.convert.weights import rounded
from gatelm.io.files import WriteError, write_json, write_text, writing
from gatelm.io.folders import whole_folder
from gatelm.io.weights import SHARD_BYTES, write_weights
from gatelm.nn.gates.upcycle import add_gate
from gatelm.nn.model import ModelConfig
from gatelm.train.saving.export import ARCHITECTURE, MODEL_TYPE

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
DEFAULT_CONTEXT_TOKENS = 4096


@dataclass(frozen=True)
class ConvertOptions:
    """The settings of a conversion.

    to: a name of `targets()`. layout: how the source's q_proj packs its gate, on purpose. add_gate:
    a preset, put in by `how`. sinks: turn attention sinks into gates; None: leave them. dtype: of
    the written weights; None: the source's.
    """

    to: str = GATELM
    verify: bool = True
    layout: str | None = None
    dtype: str | None = None
    add_gate: str | None = None
    how: str = "two_sigmoid"
    sinks: SinkRequest | None = None
    context_tokens: int | None = None


@dataclass
class Result:
    """What a conversion did. comparison: None without verification."""

    folder: Path
    source: str
    target: str
    steps: list[str] = field(default_factory=list)
    comparison: verify.ModelDifference | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "source": self.source,
            "target": self.target,
            "steps": self.steps,
            "verified": self.comparison.as_dict() if self.comparison else None,
        }


def convert(
    source: str | Path,
    target: str | Path,
    options: ConvertOptions,
    report: Callable[[str], None] = lambda text: None,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> Result:
    """Write the model at `source` to the folder `target` in another format.

    Nothing is at `target` unless everything went well, verification included. Twice the same
    conversion writes the same bytes.

    Raises:
        ConfigError: for a source that cannot be read, a model that the format cannot express (with
            those that can), and a result that does not compute the same.
        WriteError: when the folder cannot be written.
    """
    folder = Path(target).expanduser()
    _check_options(options)
    check_target(folder, Path(source).expanduser())
    report("reading")
    model = checkpoint.read_source(source, layout=options.layout)
    steps = list(model.notes)
    cfg, state = model.cfg, model.state
    if options.add_gate is not None:
        cfg, state = add_gate(cfg, state, options.add_gate, options.how)
        steps.append(f"gate {options.add_gate} added, outputs unchanged ({options.how})")
    measured = None
    if options.sinks is not None:
        cfg, state, measured = sinks.rewritten(model, options.sinks, folder, report)
        steps += measured.lines()
    if options.dtype is not None:
        before, state = state, rounded(state, DTYPES[options.dtype])
        if any(state[name].dtype != tensor.dtype for name, tensor in before.items()):
            steps.append(f"weights rounded from {model.dtype} to {options.dtype}")
    dtype = options.dtype or model.dtype
    carried = _carried(model, options, steps)
    with whole_folder(folder) as unfinished:
        report("writing")
        written = write_model(
            unfinished, model, (cfg, state), options.to, carried, dtype, steps, shard_bytes
        )
        result = Result(folder, model.family, options.to, steps)
        if measured is not None:
            sinks.check_written(unfinished, state)
            sinks.set_bos(unfinished, measured.bos)
            write_json(unfinished / sinks.REPORT, measured.to_json())
        elif options.verify:
            report("verifying: running source and result on real text")
            result.comparison = _verify(model, unfinished, options, cfg, state)
        with writing(folder):
            _write_papers(unfinished, model, written, cfg, result, carried)
    return result


def write_model(
    folder: Path,
    model: checkpoint.SourceModel,
    weights: tuple[ModelConfig, State],
    to: str,
    carried: Mapping[str, Any],
    dtype: str,
    steps: list[str],
    shard_bytes: int = SHARD_BYTES,
) -> ModelConfig:
    """Write config, weights and the source's tokenizer in a format of `targets()`.

    weights: what is written, in the terms of this package. Returns the config in the format's
    native form; what was done to get there is added to `steps`.

    Raises:
        ConfigError: for a model that the format cannot express.
        WriteError: when the folder cannot be written.
    """
    cfg, state = weights
    with writing(folder):
        if to == GATELM:
            write_json(folder / "config.json", _own_config(cfg, carried, dtype))
            write_weights(folder, state, shard_bytes)
            written = cfg
        else:
            fmt = FORMATS[to]
            written = _write_format(folder, cfg, state, fmt, carried, dtype, steps, shard_bytes)
        _copy_files(model, folder)
    return written


def _check_options(options: ConvertOptions) -> None:
    if options.to not in targets():
        raise ConfigError(f"--to {options.to!r}: no such format; {nearest(options.to, targets())}")
    if options.dtype is not None and options.dtype not in DTYPES:
        raise ConfigError(f"--dtype {options.dtype!r}: {nearest(options.dtype, DTYPES)}")
    if options.sinks is not None and (options.add_gate or options.to != GATELM):
        raise ConfigError(
            "--sinks-to-gates: writes a gatelm folder with its own gates; leave out --to and "
            "--add-gate"
        )


def check_target(folder: Path, source: Path) -> None:
    """Raises ConfigError when `folder` cannot be a new folder beside `source`."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; name a folder to write")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: is not empty; name a folder that does not exist yet")
    if source.exists() and folder.resolve().is_relative_to(source.resolve()):
        raise ConfigError(f"{folder}: lies in the source; name a folder outside it")
    if not folder.name:
        raise ConfigError(f"{folder}: cannot be a target; name a folder")


def _carried(
    model: checkpoint.SourceModel, options: ConvertOptions, steps: list[str]
) -> dict[str, Any]:
    carried = dict(model.carried)
    if options.context_tokens is not None:
        carried["max_position_embeddings"] = options.context_tokens
    if "max_position_embeddings" not in carried and options.to != GATELM:
        carried["max_position_embeddings"] = DEFAULT_CONTEXT_TOKENS
        steps.append(
            f"max_position_embeddings is not known and written as {DEFAULT_CONTEXT_TOKENS} "
            "(--context sets it)"
        )
    return carried


def _own_config(cfg: ModelConfig, carried: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    tied = cfg.head == "tied"
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "dtype": dtype,
        "tie_word_embeddings": tied,
        "model": cfg.tree(),
        **carried,
    }


def _write_format(
    folder: Path,
    cfg: ModelConfig,
    state: State,
    fmt: Format,
    carried: Mapping[str, Any],
    dtype: str,
    steps: list[str],
    shard_bytes: int,
) -> ModelConfig:
    try:
        folded = fold(cfg, state, fmt)
    except RefusedError as refused:
        able = ", ".join(targets_that_do(cfg))
        raise ConfigError(f"{refused}. Formats that can: {able}") from None
    tree = write_config(folded.cfg, fmt, carried, dtype)
    tensors = to_theirs(folded.state, fmt.pieces(folded.cfg, tree, fmt.layout))
    steps += folded.notes
    if folded.rounding:
        steps.append(f"norm weights changed by at most {folded.rounding:.2g} in rounding")
    write_json(folder / "config.json", tree)
    write_weights(folder, tensors, shard_bytes)
    return folded.cfg


def _copy_files(model: checkpoint.SourceModel, folder: Path) -> None:
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)
        return
    for name in checkpoint.FILES:
        if (model.path / name).is_file():
            shutil.copyfile(model.path / name, folder / name)


def _verify(
    model: checkpoint.SourceModel,
    folder: Path,
    options: ConvertOptions,
    cfg: ModelConfig,
    state: State,
) -> verify.ModelDifference:
    first = verify.outputs(model.path, dtype=options.dtype)
    second = verify.outputs(folder, like=first)
    found = verify.compare(first, second, verify.rounding(cfg, state, first))
    if not found.passed:
        raise verify.VerificationError(
            f"the result does not compute what the source does: {found.sentence()}; nothing was "
            "written"
        )
    return found


def _write_papers(
    folder: Path,
    model: checkpoint.SourceModel,
    written: ModelConfig,
    cfg: ModelConfig,
    result: Result,
    carried: Mapping[str, Any],
) -> None:
    found = result.comparison
    write_json(
        folder / checkpoint.RECORD,
        {
            "gatelm_version": __version__,
            "source": {"name": model.name, "format": model.family},
            "target": result.target,
            "steps": result.steps,
            "model": cfg.tree(),
            "carried": dict(carried),
            "verified": found.as_dict() if found else None,
        },
    )
    text = card.card(
        written,
        library="gatelm" if result.target == GATELM else "transformers",
        source=f"{model.name} ({model.family})",
        target=result.target,
        steps=result.steps,
        verified=found.sentence() if found else "not verified",
        figures=card.measured(model.path),
    )
    write_text(folder / "README.md", text)


__all__ = ["DTYPES", "ConvertOptions", "Result", "WriteError", "convert"]
