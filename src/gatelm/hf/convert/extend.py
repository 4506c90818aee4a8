"""Extend the context of a model in a folder, whatever its format, with or without training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gatelm import __version__
from gatelm.config import ConfigError
from gatelm.hf.convert import card, checkpoint
from gatelm.hf.convert.convert import DTYPES, check_target, write_model
from gatelm.hf.convert.families.registry import GATELM
from gatelm.hf.convert.formats.pieces import State
from gatelm.io.files import write_json, write_text, writing
from gatelm.io.folders import whole_folder
from gatelm.longcontext.extend import ExtendRequest, Extension, extend
from gatelm.longcontext.scaling import with_rope
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.config import RunConfig
from gatelm.train.saving.export import load_model
from gatelm.train.saving.folder import RunResult
from gatelm.train.trainer import train
from gatelm.train.watching.progress import Progress

RECORD = "extension.json"
"""File beside the weights of an extended model, which records the extension."""

LENGTH = "max_position_embeddings"


@dataclass(frozen=True)
class Training:
    """Settings of continued training at a longer length.

    tokens: how many in all. length_tokens: of a row; None: the new length, with the scaling in
    place. Shorter than that, only the base is changed before the training, and the scaling goes
    from this length to the new one afterwards, untrained: the order of arXiv 2505.06708.
    """

    tokens: int
    length_tokens: int | None = None
    source: str = "sotu"
    batch_size: int = 1
    lr: float = 1e-4
    device: str = "auto"


@dataclass
class Extended:
    """Result of an extension: the folder written, and what changed."""

    folder: Path
    source: str
    extension: Extension
    steps: list[str] = field(default_factory=list)
    trained_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "folder": str(self.folder),
            "source": self.source,
            **self.extension.as_dict(),
            "trained_tokens": self.trained_tokens,
            "steps": self.steps,
        }


def extend_model(
    source: str | Path,
    target: str | Path,
    request: ExtendRequest,
    training: Training | None = None,
    *,
    report: Callable[[str], None] = lambda text: None,
    progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Extended | None:
    """Write the model at `source`, its positions extended, to the folder `target`.

    The format stays the source's: a gatelm folder, or one of transformers with the config that
    transformers reads. Continued training keeps its run beside the target (`NAME.training`) and
    goes on from its last checkpoint when asked again; None when it was stopped.

    Raises:
        ConfigError: see `gatelm.longcontext.extend.extend`; and for a model that its format cannot
            express once extended, or a training that diverged.
        WriteError: when the folder cannot be written.
    """
    folder = Path(target).expanduser()
    check_target(folder, Path(source).expanduser())
    report("reading")
    model = checkpoint.read_source(source)
    before = model.carried.get(LENGTH)
    extension, start = _plan(model.cfg, before, request, training)
    steps = [*model.notes, *_in_words(extension)]
    state, tokens = model.state, 0
    if training is not None:
        where = folder.with_name(f"{folder.name}.training")
        report(f"training in {where}")
        result = _train(model, start, training, request, where, progress, should_stop)
        if result is None:
            return None
        state, tokens = _trained_state(where, model), result.tokens
        at = training.length_tokens or request.to_tokens
        steps.append(
            f"trained on {result.tokens:,} tokens of {training.source} in rows of {at:,}, "
            f"{'before' if at < request.to_tokens else 'after'} the scaling"
        )
    to = GATELM if model.fmt is None else model.fmt.name
    if model.fmt is not None and not model.fmt.written:
        to = GATELM
        steps.append(f"{model.fmt.label} is read, not written: written as gatelm")
    carried = {**model.carried, LENGTH: request.to_tokens}
    extended = Extended(folder, model.name, extension, steps, tokens)
    with whole_folder(folder) as unfinished:
        report("writing")
        written = write_model(
            unfinished, model, (extension.cfg, state), to, carried, model.dtype, steps
        )
        with writing(folder):
            _say_length(unfinished / "tokenizer_config.json", request.to_tokens)
            _write_papers(unfinished, model, written, extended, to)
    return extended


def _plan(
    cfg: ModelConfig, before: int | None, request: ExtendRequest, training: Training | None
) -> tuple[Extension, ModelConfig]:
    """Plan the config to write, and the model from which training starts."""
    at = None if training is None else training.length_tokens
    if at is None or at == request.to_tokens:
        extension = extend(cfg, before, request)
        return extension, extension.cfg
    if at > request.to_tokens:
        raise ConfigError(
            f"--train-length {at}: is more than --to {request.to_tokens}; train at that length or "
            "below"
        )
    based = cfg if request.base is None else with_rope(cfg, base=request.base)
    trained_at = replace(request, original_tokens=at)
    return extend(cfg, before, trained_at), based


def _train(
    model: checkpoint.SourceModel,
    start: ModelConfig,
    training: Training,
    request: ExtendRequest,
    where: Path,
    progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> RunResult | None:
    length = training.length_tokens or request.to_tokens
    begun = where / "start"
    if not (begun / "config.json").is_file():
        state = {name: t.to(DTYPES["float32"]) for name, t in model.state.items()}
        carried = {**model.carried, LENGTH: length}
        with whole_folder(begun) as unfinished:
            write_model(unfinished, model, (start, state), GATELM, carried, "float32", [])
    total = max(1, -(-training.tokens // (training.batch_size * length)))
    cfg = RunConfig.parse(
        {
            "name": f"{where.name}",
            "init_from": {"path": str(begun)},
            "data": {"kind": "text", "source": training.source, "seq_len": length},
            "optim": {
                "lr": training.lr,
                "schedule": {"kind": "cosine", "warmup_steps": min(100, total // 10)},
            },
            "train": {
                "total_steps": total,
                "batch_size": training.batch_size,
                "eval_sequences": 1,
                "health_sequences": 1,
                "checkpoint_every_steps": max(1, min(100, total // 10)),
                "device": training.device,
            },
        },
        "continued training",
    )
    if cfg.model != start:
        raise ConfigError(
            f"{where}: holds a training from other positions; remove it, or name another target"
        )
    result = train(cfg, where / "run", resume="auto", report=progress, should_stop=should_stop)
    if result.status == "diverged":
        raise ConfigError(
            f"the continued training diverged at step {result.steps}; a lower --lr may help "
            f"({where})"
        )
    return None if result.status == "stopped" else result


def _trained_state(where: Path, model: checkpoint.SourceModel) -> State:
    trained: Decoder = load_model(where / "run")[0]
    dtypes = {name: tensor.dtype for name, tensor in model.state.items()}
    return {name: t.detach().to(dtypes[name]) for name, t in trained.state_dict().items()}


def _in_words(extension: Extension) -> list[str]:
    return [f"{what}: {b} -> {a}" for what, b, a in extension.changes if a != b]


def _say_length(file: Path, tokens: int) -> None:
    """Write the new length into the tokenizer's config, which else warns of longer texts."""
    if not file.is_file():
        return
    tree = checkpoint.read_json(file)
    stated = tree.get("model_max_length")
    if isinstance(stated, (int, float)) and stated < tokens:
        write_json(file, {**tree, "model_max_length": tokens})


def _write_papers(
    folder: Path, model: checkpoint.SourceModel, written: ModelConfig, extended: Extended, to: str
) -> None:
    entry = {"gatelm_version": __version__, **extended.as_dict()}
    del entry["folder"]
    write_json(folder / RECORD, entry)
    trained = extended.trained_tokens
    text = card.card(
        written,
        library="gatelm" if to == GATELM else "transformers",
        source=f"{model.name} ({model.family})",
        target=to,
        steps=extended.steps,
        verified="the positions changed, so outputs do; `gatelm eval --by-position` measures them",
        figures={} if trained else card.measured(model.path),
        title="Language model whose context was extended with gatelm",
        facts={
            "Context": f"{extended.extension.to_tokens:,} tokens "
            f"({extended.extension.original_tokens:,} before)",
            "Method": extended.extension.method
            + (f", trained on {trained:,} tokens" if trained else ", without training"),
        },
    )
    write_text(folder / "README.md", text)
