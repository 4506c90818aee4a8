"""gatelm: language models with gated attention, from the gate to the verdict."""

__version__ = "0.1.0"
