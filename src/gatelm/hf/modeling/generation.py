"""Continue a text with any model that can be opened, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.config import ConfigError
from gatelm.hf.load import UnknownTensors, open_reader, stated_context
from gatelm.hf.modeling.wrapper import GatelmForCausalLM
from gatelm.hf.probe.hf_probe import HFProbe
from gatelm.hf.probe.structure import check_length, learned_positions
from gatelm.hf.probe.tokenizer import GatelmTokenizer, HFTokenizer
from gatelm.train.saving.export import CONFIG, CONTEXT, GENERATION_CONFIG, write_tokenizer

Tokenizer = HFTokenizer | GatelmTokenizer


@dataclass(frozen=True)
class Sampling:
    """Settings of the choice of the next token: the likeliest, or a sample.

    temperature: divides the logits; None: the likeliest. top_p: draw from the fewest tokens whose
    probabilities sum to so much (arXiv 1904.09751).
    """

    temperature: float | None = 1.0
    top_p: float = 1.0

    def settings(self) -> dict[str, Any]:
        """Return all arguments of `generate`, so that the model's own settings are not used."""
        if self.temperature is None:
            return {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": None}
        return {
            "do_sample": True,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": 0,
        }


def open_generator(
    where: str | Path,
    *,
    device: str = "auto",
    dtype: str = "float32",
    unknown_tensors: UnknownTensors = "refuse",
) -> tuple[PreTrainedModel, Tokenizer]:
    """Open the model at `where` (see `hf.load.open_model`) with `generate`, and its tokenizer.

    Raises:
        ConfigError: when it cannot be opened, or has no tokenizer.
    """
    probe, tokenizer = open_reader(
        where,
        device=device,
        dtype=dtype,
        unknown_tensors=unknown_tensors,
        purpose="continue a text",
    )
    assert isinstance(tokenizer, (HFTokenizer, GatelmTokenizer))
    if isinstance(probe, GatelmProbe):
        assert isinstance(tokenizer, GatelmTokenizer)
        model = GatelmForCausalLM.from_decoder(
            probe.model,
            eos_token_id=tokenizer.inner.eos_id,
            max_position_embeddings=stated_context(where, probe),
        )
        folder = Path(where).expanduser()
        folder = folder if (folder / CONFIG).is_file() else folder / "model"
        if (folder / GENERATION_CONFIG).is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder)
    else:
        assert isinstance(probe, HFProbe)
        model = probe.model
        if not model.can_generate():
            raise ConfigError(f"{where}: {type(model).__name__} cannot generate")
    settings: Any = model.generation_config
    unused = tokenizer.unused_ids(probe.vocab_size)
    settings.suppress_tokens = sorted({*(settings.suppress_tokens or ()), *unused}) or None
    return model.eval(), tokenizer


def library_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerBase:
    """Return the tokenizer as transformers' class, adding BOS if the model expects it."""
    if isinstance(tokenizer, HFTokenizer):
        return tokenizer.inner
    with TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), tokenizer.inner)
        return AutoTokenizer.from_pretrained(folder)


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Encode a prompt, with BOS first if the model expects it.

    Raises:
        ConfigError: when there is not a single token.
    """
    ids = list(tokenizer.encode(prompt))
    if tokenizer.adds_bos and tokenizer.bos_id is not None:
        ids = [tokenizer.bos_id, *ids]
    if not ids:
        raise ConfigError("prompt: empty, and the model's texts begin with no BOS; give some text")
    return ids


def stream(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    max_new_tokens: int,
    sampling: Sampling,
    seed: int,
    write: Callable[[str], None],
    note: Callable[[str], None] = lambda text: None,
) -> list[int]:
    """Continue `prompt`, pass each piece of text to `write`, and return the new ids.

    It ends at the model's end of text, after `max_new_tokens`, or where the positions end that the
    model has learned. The same seed draws the same text.

    Args:
        note: called with a sentence when the text goes beyond the context that the model states.

    Raises:
        ConfigError: for a prompt that is empty, or longer than the positions a model has learned.
    """
    ids = torch.tensor([prompt_ids(tokenizer, prompt)], device=model.device)
    limit = learned_positions(model)
    if limit is not None:
        check_length(model, ids.shape[1] + 1)
        max_new_tokens = min(max_new_tokens, limit - ids.shape[1])
    stated = getattr(model.config.get_text_config(), CONTEXT, None)
    if stated is not None and ids.shape[1] > stated:
        note(
            f"the prompt has {ids.shape[1]:,} tokens, but the model states a context of {stated:,} "
            "(max_position_embeddings); beyond it the text is often worse"
        )
    ends = _ends(model)
    streamer = _Streamer(tokenizer, ends, write)
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            output: Any = model.generate(  # pyright: ignore[reportCallIssue]
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_new_tokens,
                pad_token_id=min(ends) if ends else None,
                streamer=streamer,
                **sampling.settings(),
            )
    finally:
        logging.set_verbosity(level)
    return output[0, ids.shape[1] :].tolist()


def _ends(model: PreTrainedModel) -> set[int]:
    """Return the ids that end a text.

    Raises:
        ConfigError: for a setting that is no id.
    """
    settings: Any = model.generation_config
    eos = settings.eos_token_id
    ends = set() if eos is None else set(eos if isinstance(eos, (list, tuple)) else [eos])
    if wrong := [value for value in ends if not isinstance(value, int) or value < 0]:
        raise ConfigError(
            f"generation_config.json: eos_token_id {wrong[0]!r}: give the id of a token, a number"
        )
    return ends


class _Streamer(BaseStreamer):
    """Streamer that writes text as soon as no later token can change it."""

    def __init__(self, tokenizer: Tokenizer, ends: set[int], write: Callable[[str], None]):
        self.tokenizer, self.ends, self.write = tokenizer, ends, write
        self.prompt_passed = False
        self.ids: list[int] = []
        self.written = ""

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt, then one token a call."""
        if not self.prompt_passed:
            self.prompt_passed = True
            return
        self.ids += [i for i in value.flatten().tolist() if i not in self.ends]
        self._write(self.tokenizer.decode(self.ids), complete=False)

    def end(self) -> None:
        """Write the text that was held back."""
        self._write(self.tokenizer.decode(self.ids), complete=True)

    def _write(self, text: str, *, complete: bool) -> None:
        # A character of several bytes shows as U+FFFD until its last token is there.
        settled = text if complete else text.rstrip("\ufffd")
        if len(settled) > len(self.written) and (complete or settled.startswith(self.written)):
            self.write(settled[len(self.written) :])
            self.written = settled
