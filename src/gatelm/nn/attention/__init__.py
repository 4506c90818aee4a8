"""The one attention forward, its config, and what it is made of.

The forward stands in `module.py`; `backends/` computes the attention itself.
"""
