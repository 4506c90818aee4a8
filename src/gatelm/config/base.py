"""The base of every config: frozen, nested, unknown keys refused, content-hashed."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    ValidationError,
    model_validator,
)

C = TypeVar("C", bound="Config")


class ConfigError(ValueError):
    """A user's mistake in a config: one sentence with the config path and what would do."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known word closest to `word`, or the known words."""
    known = sorted(known)
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if match:
        return f"did you mean {match[0]!r}?"
    return "known: " + ", ".join(known)


def choice(registry: Mapping[str, Any], what: str) -> Any:
    """Type of a `str` field whose values are the keys of `registry`, read at validation.

    An entry added to the dict is at once a legal config value.
    """

    def check(value: str) -> str:
        if value not in registry:
            raise ValueError(f"unknown {what} {value!r}; {nearest(value, registry)}")
        return value

    return Annotated[str, AfterValidator(check), Field(json_schema_extra={"choices": what})]


def not_identity(default: Any, **kwargs: Any) -> Any:
    """Make a field that the content hash skips, as it does not change the computed function."""
    return Field(default=default, json_schema_extra={"identity": False}, **kwargs)


def _check_size(value: Any, key: str) -> None:
    """
    Raises:
        ValueError: for a whole number that no count, length or seed can be.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        digits = int(value.bit_length() * 0.30103) + 1
        raise ValueError(f"{key}: a number of {digits:,} digits is too large")
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_size(item, key)


def _names_a_folder(value: str) -> str:
    parts = value.split("/")
    if any(part in ("", ".", "..") for part in parts) or re.search(r"[\x00-\x1f\\]", value):
        raise ValueError(f"{value!r} names a folder below runs/: write letters and digits")
    return value


FolderName = Annotated[str, AfterValidator(_names_a_folder)]
"""Name of a folder or relative path of folders, which cannot lead out of its parent folder."""


class Config(BaseModel):
    """Frozen pydantic model: unknown keys are errors that name the nearest known key."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=False,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {key!r}; {nearest(str(key), cls.model_fields)}")
                _check_size(data[key], key)
                if isinstance(data[key], bool) and not _admits_bool(cls, key):
                    raise ValueError(f"{key}: {str(data[key]).lower()} is no value for this key")
        return data

    @classmethod
    def parse(cls, tree: Any, where: str = "") -> Self:
        """Validate a plain tree.

        Raises:
            ConfigError: one line a mistake, each with its config path; `where` (a file name)
                stands in front.
        """
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            prefix = f"{where}: " if where else ""
            raise ConfigError("\n".join(prefix + s for s in _sentences(error, tree))) from None

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some fields changed."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**values, **changes})

    def tree(self) -> dict[str, Any]:
        """The config as plain JSON-compatible data, defaults included."""
        return self.model_dump(mode="json")

    def content_hash(self) -> str:
        """12 hex digits of the SHA-256 of everything that changes what is computed."""
        canonical = json.dumps(_identity(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


@cache
def _admits_bool(cls: type[Config], name: str) -> bool:
    """Whether a field admits true and false; pydantic alone takes them for 1 and 0."""
    pending = [cls.model_fields[name].annotation]
    while pending:
        annotation = pending.pop()
        if annotation is bool or annotation is Any:
            return True
        pending.extend(get_args(annotation))
    return False


def by_kind(default: str, key: str = "kind") -> Discriminator:
    """Discriminator of a union of configs by their `key`, which may be left out for `default`."""

    def kind(value: object) -> str:
        found = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
        return str(found or default)

    return Discriminator(kind)


def _identity(value: Any) -> Any:
    if isinstance(value, Config):
        out = {}
        for name, field in type(value).model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, dict) and extra.get("identity") is False:
                continue
            out[name] = _identity(getattr(value, name))
        return out
    if isinstance(value, Mapping):
        return {str(k): _identity(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_identity(v) for v in value]
    return value


@contextmanager
def foreign(where: str) -> Iterator[None]:
    """Say in one sentence that a file of others cannot be read, whatever its values caused.

    Raises:
        ConfigError: naming `where`, for an error that a value of the wrong kind or size causes.
    """
    try:
        yield
    except ConfigError:
        raise
    except ValidationError as error:
        raise ConfigError("\n".join(f"{where}: {s}" for s in _sentences(error, {}))) from None
    except _MISREAD as error:
        text = " ".join(str(error).split())
        raise ConfigError(
            f"{where}: cannot be read, a value may be of the wrong kind or size "
            f"({type(error).__name__}: {text:.200})"
        ) from None


_MISREAD = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)


def _sentences(error: ValidationError, tree: Any) -> list[str]:
    out = []
    for item in error.errors():
        path = _config_path(item["loc"], tree)
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "missing":
            message = "this key is required"
        elif item["type"] not in ("value_error", "union_tag_invalid", "union_tag_not_found"):
            message = f"{message} (got {item['input']!r:.80})"
        sentence = f"{path}: {message}" if path else message
        if sentence not in out:
            out.append(sentence)
    return out


def _config_path(loc: tuple[Any, ...], tree: Any) -> str:
    """The dotted path of a pydantic error, without the union tags pydantic adds."""
    parts: list[str] = []
    node = tree
    for index, item in enumerate(loc):
        found, child = _child(node, item)
        if found:
            node = child
        elif index != len(loc) - 1:
            continue
        parts.append(str(item))
    return ".".join(parts)


def _child(node: Any, item: Any) -> tuple[bool, Any]:
    if isinstance(node, Mapping):
        return item in node, node.get(item)
    if isinstance(node, (list, tuple)):
        inside = isinstance(item, int) and item < len(node)
        return inside, node[item] if inside else None
    if isinstance(node, Config) and item in type(node).model_fields:
        return True, getattr(node, item)
    return False, None
