"""Probes of any causal language model of transformers, which read it without conversion.

`HFProbe` in `hf_probe.py` is the entry; the other files know the families.
"""
