"""Feed-forward networks: the gated MLP and the mixture of experts with its router.

`config.py` is the union of their configs.
"""
