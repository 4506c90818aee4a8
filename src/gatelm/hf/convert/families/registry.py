"""The list of families."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gatelm.config import ConfigError
from gatelm.hf.convert.families.afmoe import AfmoeFormat
from gatelm.hf.convert.families.lfm3 import Lfm3Format
from gatelm.hf.convert.families.llama import LlamaFormat
from gatelm.hf.convert.families.mistral import MistralFormat
from gatelm.hf.convert.families.paper import PaperFormat
from gatelm.hf.convert.families.qwen2 import Qwen2Format
from gatelm.hf.convert.families.qwen3 import Qwen3Format
from gatelm.hf.convert.families.qwen3_5 import Qwen35Format, Qwen35MoeFormat
from gatelm.hf.convert.families.qwen3_moe import Qwen3MoeFormat
from gatelm.hf.convert.families.qwen3_next import Qwen3NextFormat
from gatelm.hf.convert.families.step3p7 import Step3p7Format
from gatelm.hf.convert.formats.format import Format

GATELM = "gatelm"
"""The name of this package's own format."""

FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        Qwen35Format(),
        Qwen3NextFormat(),
        Qwen35MoeFormat(),
        PaperFormat(),  # before Qwen3, whose model_type the release has
        LlamaFormat(),
        MistralFormat(),
        Qwen2Format(),
        Qwen3Format(),
        Qwen3MoeFormat(),
        AfmoeFormat(),
        Lfm3Format(),
        Step3p7Format(),
    )
}
"""Formats by the name that `--to` takes. The first that recognises a config.json is taken."""


def targets() -> tuple[str, ...]:
    """Return the names that `--to` takes."""
    return (GATELM, *(name for name, fmt in FORMATS.items() if fmt.written))


def recognise(tree: Mapping[str, Any], where: str) -> Format:
    """Find the format of a config.json by its model_type and, for the paper's release, its keys.

    Raises:
        ConfigError: when it is none of `FORMATS`.
    """
    for fmt in FORMATS.values():
        if fmt.recognises(tree):
            return fmt
    kind = tree.get("model_type")
    known = ", ".join(fmt.model_type for fmt in FORMATS.values() if fmt.name == fmt.model_type)
    more = ""
    if f"{kind}_text" in FORMATS:
        more = f"; of {kind} only the text model ({kind}_text) is read"
    raise ConfigError(f"{where}: model_type {kind!r} cannot be converted; known: {known}{more}")


def table() -> Iterator[str]:
    """Return the rows of the table of formats in docs/convert.md."""
    yield "| `--to` | read | written | gate | norms | notes |"
    yield "|---|---|---|---|---|---|"
    yield f"| `{GATELM}` | yes | yes | any | any | the default |"
    for fmt in FORMATS.values():
        written = "yes" if fmt.written else "no"
        norm = "1 + w" if fmt.norm == "zero_centred" else "w"
        yield f"| `{fmt.name}` | yes | {written} | {_gate(fmt)} | {norm} | {fmt.notes} |"


def _gate(fmt: Format) -> str:
    places = {
        None: "a matrix of its own",
        "per_query_head": "packed per query head",
        "per_kv_group": "packed per key/value group",
    }
    units = {"head": "head", "element": "channel"}
    forms = " or ".join(units[form] for form in fmt.gates if form in units)
    return f"per {forms}, {places[fmt.layout]}" if forms else "none"
