"""gatelm: language models with gated attention, from the gate to the verdict."""

from gatelm.hf.modeling.registration import register as _register

__version__ = "0.1.0"

_register()
