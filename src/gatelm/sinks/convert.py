"""Turn a pretrained model's sinks into gates: measure, rewrite, fit, check at every position."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from gatelm.analysis.probe.evaluation import evaluation
from gatelm.analysis.probe.protocol import TextTokenizer
from gatelm.analysis.probe.recording import record
from gatelm.analysis.windows import Bos, cut_windows
from gatelm.config import ConfigError
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.nn.shapes import Float, Int, Tensor
from gatelm.sinks.constants import SinkConstants, sink_constants, sink_layers
from gatelm.sinks.effects import SINK_SHARE, Effects, effects
from gatelm.sinks.rewrite import LinearGate, rewrite
from gatelm.sinks.ridge import Fit, Sums, fit

Form = Literal["virtual", "gate", "auto"]

LOGIT_LIMIT = 11.5
"""Largest size of a logit that is fitted: a gate beyond it is open or shut in float32 anyway."""
PINNED_LOGIT, PINNED_WEIGHT = -10.0, 1e4
"""The logit of a gate that is to be shut at a fixed first token, and how heavily it counts."""
MOST_KEPT_LAYERS = 6
"""Largest number of first layers in which the gate form is given up for another."""


@dataclass(frozen=True)
class SinkOptions:
    """How to convert.

    form: "virtual" acts as one more key in every layer, "gate" reads the layer's input in every
    layer, "auto" does so where no sink is reborn. max_loss: largest rise of the loss, in nats a
    token. seq_len: tokens in a row: the length of use, since a gate fitted at another loses some.
    fit_rows, check_rows: rows of text to fit on, and others to check on.
    """

    form: Form = "auto"
    max_loss: float = 0.05
    seq_len: int = 512
    fit_rows: int = 48
    check_rows: int = 16
    bos: Bos = "auto"


@dataclass
class SinkReport:
    """What was done and measured.

    virtual, shut: layers whose gate is virtual, or shut at the first token. r2: share of the
    variance of the gates' logits that the fit explains on held-out tokens, by layer, mean over
    heads.
    """

    form: str
    rows: tuple[int, int]
    seq_len: int
    before: Effects
    after: Effects
    virtual: tuple[int, ...] = ()
    shut: tuple[int, ...] = ()
    r2: dict[int, float] = field(default_factory=dict)
    constants: dict[int, SinkConstants] = field(default_factory=dict)
    bos: Literal["first", "dropped", "as before"] = "as before"
    """How texts of the converted model begin: with BOS, without the BOS that the original had, or
    as before."""

    @property
    def loss_change(self) -> tuple[float, float]:
        """Mean change of the loss over rows, and half the width of its 95 % interval."""
        changes = torch.tensor(self.after.losses) - torch.tensor(self.before.losses)
        if len(changes) < 2:
            return float(changes.mean()), math.inf
        half = _t95(len(changes) - 1) * float(changes.std()) / math.sqrt(len(changes))
        return float(changes.mean()), half

    def lines(self) -> list[str]:
        """What the command prints."""
        change, half = self.loss_change
        (layer, before), (later, after) = self.before.strongest, self.after.strongest
        where = f"{self.rows[1]} held-out rows of {self.seq_len} tokens"
        reads = {
            "layers with the virtual form": self.virtual,
            "layers shut at the first token": self.shut,
        }
        lines = [
            f"sinks to gates ({self.form}), fitted on {self.rows[0]} rows, checked on {where}",
            f"  loss {change:+.4f} +- {half:.4f} nats a token",
            f"  strongest sink {before.share:.0%} of attention (layer {layer}, position "
            f"{before.position}) -> {after.share:.1%} (layer {later}, position {after.position})",
            f"  largest activation {self.before.first:,.0f} at the first token, "
            f"{self.before.others:,.0f} elsewhere -> {self.after.first:,.0f}, "
            f"{self.after.others:,.0f}",
        ]
        lines += [f"  {what}: {', '.join(map(str, n))}" for what, n in reads.items() if n]
        if self.bos != "as before":
            lines.append(f"  BOS is {self.bos}: the tokenizer is changed to do so")
        if self.r2:
            shown = ", ".join(f"{n}: {value:.2f}" for n, value in sorted(self.r2.items()))
            lines.append(f"  R2 of the gates' logits by layer: {shown}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        change, half = self.loss_change
        return {
            "form": self.form,
            "fit_rows": self.rows[0],
            "check_rows": self.rows[1],
            "seq_len": self.seq_len,
            "loss_change": change,
            "loss_change_95": half,
            "bos": self.bos,
            "virtual_layers": list(self.virtual),
            "layers_shut_at_first_token": list(self.shut),
            "r2_by_layer": {str(n): value for n, value in sorted(self.r2.items())},
            "constants_spread_by_layer": {
                str(n): {"key": one.k_spread, "value": one.v_spread}
                for n, one in sorted(self.constants.items())
            },
            "before": self.before.to_json(),
            "after": self.after.to_json(),
        }


class SinkError(ConfigError):
    """A conversion that is refused; `report` holds what was measured."""

    def __init__(self, text: str, report: SinkReport | None = None):
        super().__init__(text)
        self.report = report


def sinks_to_gates(
    cfg: ModelConfig,
    state: Mapping[str, Tensor],
    tokenizer: TextTokenizer,
    texts: Sequence[str],
    options: SinkOptions,
    report: Callable[[str], None] = lambda text: None,
) -> tuple[ModelConfig, dict[str, Tensor], SinkReport]:
    """The model with gates in place of its sinks, its weights, and what was measured.

    Raises:
        SinkError: when the model has no sink at its first token, or the loss rises by more than
            `options.max_loss`, or a sink is reborn.
        ConfigError: when the model cannot be rewritten, or the texts are too short.
    """
    model = _model(cfg, state)
    layers = sink_layers(model)
    rows = _Rows.cut(texts, tokenizer, options)
    report("measuring the sinks")
    before = effects(model, rows.check, layers, front=rows.front)
    _check_sink(before)
    begin = rows.text(rows.fit) if options.form == "gate" else rows.fit
    constants = sink_constants(model, begin.split(8), layers)
    converter = _Converter(cfg, state, constants, rows, options, report)
    found: SinkReport | None = None
    for virtual, shut in converter.candidates():
        report(_attempt(virtual, shut, len(layers)))
        new_cfg, new_state, r2 = converter.build(virtual, shut)
        new = _model(new_cfg, new_state)
        after = effects(new, converter.begun(rows.check), layers, front=converter.front)
        found = SinkReport(
            options.form,
            (len(rows.fit), len(rows.check)),
            options.seq_len,
            before,
            after,
            virtual,
            shut,
            r2,
            constants,
            bos="first" if converter.front else "dropped" if rows.front else "as before",
        )
        if after.strongest[1].share < SINK_SHARE and found.loss_change[0] <= options.max_loss:
            return new_cfg, new_state, found
    assert found is not None
    raise _refusal(found, options)


@dataclass(frozen=True)
class _Rows:
    """Rows of the original model, to fit on and, of other documents, to check on.

    front: 1 where they begin with BOS. bos_id: of the tokenizer, None without.
    """

    fit: Int[Tensor, "n T"]
    check: Int[Tensor, "m T"]
    front: int
    bos_id: int | None

    @classmethod
    def cut(cls, texts: Sequence[str], tokenizer: TextTokenizer, options: SinkOptions) -> _Rows:
        if len(texts) < 2:
            half = len(texts[0]) // 2
            texts = [texts[0][:half], texts[0][half:]]
        check = [text for index, text in enumerate(texts) if index % 4 == 1]
        others = [text for index, text in enumerate(texts) if index % 4 != 1]
        found = [
            cut_windows(part, tokenizer, seq_len=options.seq_len, samples=samples, bos=options.bos)
            for part, samples in ((others, options.fit_rows), (check, options.check_rows))
        ]
        front = 0 if found[0].first.bos_id is None else 1
        return cls(found[0].tokens, found[1].tokens, front, tokenizer.bos_id)

    def text(self, rows: Int[Tensor, "n T"]) -> Int[Tensor, "n t"]:
        """The rows without BOS."""
        return rows[:, self.front :]


class _Converter:
    """Builds candidates from one set of constants and one set of sums."""

    def __init__(
        self,
        cfg: ModelConfig,
        state: Mapping[str, Tensor],
        constants: Mapping[int, SinkConstants],
        rows: _Rows,
        options: SinkOptions,
        report: Callable[[str], None],
    ):
        self.cfg, self.state, self.constants = cfg, state, constants
        self.rows, self.options, self._report = rows, options, report
        self.front = 1 if options.form == "gate" and rows.bos_id is not None else 0
        self._sums: dict[int, tuple[Sums, Sums, Sums]] | None = None

    def candidates(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """(virtual layers, layers shut at the first token) to try, the simplest first."""
        layers = tuple(self.constants)
        if self.options.form == "virtual":
            yield layers, ()
            return
        if self.options.form == "gate":
            for count in range(MOST_KEPT_LAYERS + 1 if self.front else 1):
                yield (), layers[:count]
            return
        for count in range(MOST_KEPT_LAYERS + 1):
            yield layers[:count], ()
        yield layers, ()

    def begun(self, rows: Int[Tensor, "n T"]) -> Int[Tensor, "n t"]:
        """The rows as the converted model reads them: BOS first in the gate form, else no BOS."""
        text = self.rows.text(rows)
        if not self.front:
            return text
        assert self.rows.bos_id is not None
        return torch.cat((text.new_full((len(text), 1), self.rows.bos_id), text), dim=1)

    def build(
        self, virtual: tuple[int, ...], shut: tuple[int, ...]
    ) -> tuple[ModelConfig, dict[str, Tensor], dict[int, float]]:
        fits: dict[int, Fit] = {}
        if set(virtual) != set(self.constants):
            if self._sums is None:
                self._report("fitting gates to the virtual sinks")
                self._sums = self._collect(self.begun(self.rows.fit))
            for layer, (train, held_out, first) in self._sums.items():
                if layer not in virtual:
                    fits[layer] = fit(train, held_out, first if layer in shut else None)
        gates = {n: LinearGate(one.solution[:-1].T, one.solution[-1]) for n, one in fits.items()}
        cfg, state = rewrite(self.cfg, self.state, self.constants, gates)
        return cfg, state, {n: float(one.r2.mean()) for n, one in fits.items()}

    @torch.no_grad()
    def _collect(self, begun: Int[Tensor, "n T"]) -> dict[int, tuple[Sums, Sums, Sums]]:
        """Sums of inputs and logits of the virtual gates: to train on, held out, at the first."""
        model = _model(*rewrite(self.cfg, self.state, self.constants, {}))
        sums = {layer: (Sums(), Sums(), Sums()) for layer in self.constants}
        inputs: dict[int, Tensor] = {}
        is_held_out = False

        def gate(layer: int, scores: Float[Tensor, "B T N 1"]) -> None:
            x, logits = inputs.pop(layer), torch.logit(scores[..., 0].double())
            logits = logits.clamp(-LOGIT_LIMIT, LOGIT_LIMIT)
            train, held_out, first = sums[layer]
            (held_out if is_held_out else train).add(x.flatten(0, 1), logits.flatten(0, 1))
            shut = torch.full_like(logits[:, 0], PINNED_LOGIT)
            first.add(x[:, 0], shut, PINNED_WEIGHT / len(begun))

        readers = {"normed": inputs.__setitem__, "sdpa_gate": gate}
        with evaluation(model), record(model, readers, layers=list(sums)):
            for index, rows in enumerate(begun.split(4)):
                is_held_out = index % 5 == 4
                model.hidden(rows)
        return sums


def _model(cfg: ModelConfig, state: Mapping[str, Tensor]) -> Decoder:
    with torch.device("meta"):
        model = Decoder(cfg)
    model.load_state_dict({name: t.float() for name, t in state.items()}, assign=True)
    return model.eval()


def _check_sink(before: Effects) -> None:
    layer, sink = before.strongest
    if sink.share < SINK_SHARE:
        raise SinkError(
            f"the model has no attention sink: no position gets {SINK_SHARE:.0%} of later queries' "
            f"attention (the strongest: {sink.share:.1%}, layer {layer}, position "
            f"{sink.position}); there is nothing to turn into gates"
        )
    if sink.position != 0:
        raise SinkError(
            f"the strongest sink is at position {sink.position} (layer {layer}, {sink.share:.0%}), "
            "and only a sink at the first token has the same key in every text"
        )


def _refusal(found: SinkReport, options: SinkOptions) -> SinkError:
    change, half = found.loss_change
    layer, sink = found.after.strongest
    if sink.share >= SINK_SHARE:
        return SinkError(
            f"a sink is reborn at position {sink.position} (layer {layer}, {sink.share:.0%} of "
            "attention); --form auto or virtual may do without",
            found,
        )
    return SinkError(
        f"the loss rises by {change:.4f} +- {half:.4f} nats a token, more than --max-loss "
        f"{options.max_loss:g}; the sinks' weights may not follow from the layers' inputs "
        "(--form virtual does not need that)",
        found,
    )


def _attempt(virtual: tuple[int, ...], shut: tuple[int, ...], layers: int) -> str:
    if len(virtual) == layers:
        return "trying the virtual form in every layer"
    kept = f", the virtual form in layers {', '.join(map(str, virtual))}" if virtual else ""
    kept += f", shut at the first token in layers {', '.join(map(str, shut))}" if shut else ""
    return f"trying gates from the input{kept}"


def _t95(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))
