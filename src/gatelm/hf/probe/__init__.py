"""What reads any causal language model of transformers without converting its weights.

`HFProbe` in `hf_probe.py` is the entry; the other files know the families.
"""
