"""Write docs/api.md from the docstrings of the public names: `python docs/make_api.py`.

With `--print` the page goes to stdout. Every public name of `gatelm` must be in `GROUPS`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gatelm
from gatelm.config import Config

GROUPS = {
    "Models": (
        "ModelConfig",
        "LayerConfig",
        "GateConfig",
        "GATE_PRESETS",
        "model_preset",
        "model_presets",
        "Decoder",
        "init_weights",
        "count_parameters",
        "flops_per_token",
    ),
    "Training": ("load_config", "RunConfig", "train_model", "RunResult", "load_model"),
    "Looking inside": (
        "open_model",
        "analyze",
        "Report",
        "describe_metric",
        "record",
        "keep",
        "intervene",
    ),
    "Conversion and longer texts": ("convert", "ConvertOptions", "extend_model", "ExtendRequest"),
    "Studies": (
        "load_study",
        "StudyConfig",
        "plan_study",
        "run_study",
        "write_results",
        "build_report",
    ),
    "Mistakes": ("ConfigError",),
}

INTRODUCTION = """\
# Python API

The names that `import gatelm` offers, each loaded when it is first asked for. `gatelm.train` and
the other folders are packages, so that the function that trains is `gatelm.train_model`. This page
is made from the docstrings: `python docs/make_api.py`.

```python
import gatelm

cfg = gatelm.RunConfig.parse(gatelm.load_config("text", ["train.total_steps=100"]).tree)
result = gatelm.train_model(cfg, "runs/text")
model, tokenizer = gatelm.load_model(result.folder)
ids = tokenizer.encode("Four score and seven years ago").tolist()
report = gatelm.analyze(model, ids)
print(report.metrics["first_token_share"])
```
"""


def page() -> str:
    """The content of docs/api.md."""
    lines = [INTRODUCTION]
    for title, names in GROUPS.items():
        lines.append(f"## {title}\n")
        for name in names:
            lines.extend(_entry(name, getattr(gatelm, name)))
    return "\n".join(lines).rstrip() + "\n"


def _entry(name: str, value: Any) -> Iterator[str]:
    """Heading, signature, docstring and fields of a public name."""
    yield f"### `{name}`\n"
    if isinstance(value, dict):
        yield f"A dictionary with these keys: {', '.join(f'`{key}`' for key in value)}.\n"
        return
    owner = value if isinstance(value, type) else None
    is_config = owner is not None and issubclass(owner, Config)
    if not is_config and not (owner is not None and issubclass(owner, Exception)):
        yield f"```python\n{_signature(name, value)}\n```\n"
    yield _markdown(inspect.getdoc(value) or "") + "\n"
    if owner is not None and issubclass(owner, Config):
        yield from _fields(owner)
    if owner is not None:
        yield from _methods(owner)


def _signature(name: str, value: Any) -> str:
    """`name(...) -> ...`, one parameter a line where it would be long."""
    signature = inspect.signature(value)
    parameters: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in "".join(parameters):
            parameters.append("*")
        parameters.append(_parameter(parameter))
    returned = signature.return_annotation
    is_type = isinstance(value, type) or returned is inspect.Signature.empty
    end = "" if is_type else f" -> {returned}"
    line = f"{name}({', '.join(parameters)}){end}"
    if len(line) <= 88:
        return line
    body = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{name}(\n{body}){end}"


def _parameter(parameter: inspect.Parameter) -> str:
    """`name: type = default`; a default that has no short spelling is `...`."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}: {parameter.annotation}"
    if parameter.default is parameter.empty:
        return text
    shown = repr(parameter.default)
    return f"{text} = {'...' if shown.startswith('<') else shown}"


def _fields(config: type[Config]) -> Iterator[str]:
    """A table of a config's keys."""
    yield "| key | default | |\n|---|---|---|"
    for name, field in config.model_fields.items():
        default = (
            "required"
            if field.is_required()
            else _short(field.get_default(call_default_factory=True))
        )
        text = " ".join((field.description or "").split()).replace("|", "\\|")
        yield f"| `{name}` | {default} | {text} |"
    yield ""


def _short(default: Any) -> str:
    """A default as YAML has it; that of a nested config by its class."""
    if isinstance(default, Config):
        return f"`{type(default).__name__}`"
    shown = {None: "null", True: "true", False: "false"}
    if isinstance(default, (bool, type(None))):
        return f"`{shown[default]}`"
    return f"`{list(default) if isinstance(default, tuple) else default}`"


def _methods(owner: type) -> Iterator[str]:
    """One line for each public method or property that the class itself defines."""
    lines = []
    for name, member in vars(owner).items():
        inner = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        text = inspect.getdoc(inner.fget if isinstance(inner, property) else inner)
        is_ours = inspect.isfunction(inner) or isinstance(inner, property)
        if not name.startswith("_") and is_ours and text:
            first = " ".join(text.partition("\n\n")[0].split())
            lines.append(f"- `{name}{'' if isinstance(inner, property) else '()'}`: {first}")
    if lines:
        yield "\n".join(lines) + "\n"


def _markdown(docstring: str) -> str:
    """A docstring's paragraphs; `Args:`, `Returns:` and `Raises:` as lists."""
    out: list[str] = []
    for paragraph in re.split(r"\n\n", docstring):
        head, _, body = paragraph.partition("\n")
        if head not in ("Args:", "Returns:", "Raises:"):
            out.append(paragraph)
            continue
        items = re.split(r"\n(?=    \S)", "\n" + body)
        texts = [" ".join(item.split()) for item in items if item.strip()]
        out.append(f"{head[:-1]}:\n\n" + "\n".join(f"- {_item(text)}" for text in texts))
    return "\n\n".join(out)


def _item(text: str) -> str:
    """`name: what it is` with the name as code."""
    name, colon, rest = text.partition(": ")
    return f"`{name}`: {rest}" if colon and re.fullmatch(r"\w+", name) else text


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        (Path(__file__).parent / "api.md").write_text(page(), encoding="utf-8")
