"""Make gatelm's models known to transformers, whichever of the two is imported first.

transformers finds a model type in tables of names, and imports `transformers.models.<type>` for its
classes once they are asked for. So nothing is imported here: when transformers loads its tables,
our names are added to them, and its import of our model type is answered with
`hf.modeling.wrapper`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

MODEL_TYPE = "gatelm"
ALIAS = f"transformers.models.{MODEL_TYPE}"
CLASSES = ("GatelmConfig", "GatelmForCausalLM")
_AUTO = "transformers.models.auto"
TABLES = {
    f"{_AUTO}.configuration_auto": ("CONFIG_MAPPING_NAMES", "GatelmConfig"),
    f"{_AUTO}.modeling_auto": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "GatelmForCausalLM"),
}
"""The modules that hold a table, its name, and our entry in it."""


class _Finder:
    """Import finder for `ALIAS`; it adds our entry to each table once its module has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == ALIAS:
            return ModuleSpec(fullname, _Alias())  # pyright: ignore[reportArgumentType]
        if fullname not in TABLES:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((found for found in specs if found is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_add(module: ModuleType) -> None:
                run(module)
                _add(module)

            spec.loader.exec_module = run_and_add
        return spec


class _Alias:
    """Loader of `transformers.models.gatelm`, by which transformers imports our classes."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, which makes an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        wrapper = importlib.import_module("gatelm.hf.modeling.wrapper")
        for name in CLASSES:
            setattr(module, name, getattr(wrapper, name))


def register() -> None:
    """Make `AutoConfig` and `AutoModelForCausalLM` know our models, now or when they are loaded."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    configs, models = (sys.modules.get(name) for name in TABLES)
    if configs is not None and models is None:
        _add(configs)
    if models is not None:
        # The tables have been read already; the classes' own registration reaches further.
        wrapper = importlib.import_module("gatelm.hf.modeling.wrapper")
        wrapper.register_classes()


def _add(module: ModuleType) -> None:
    table, entry = TABLES[module.__name__]
    getattr(module, table)[MODEL_TYPE] = entry
