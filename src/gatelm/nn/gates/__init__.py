"""The gate as a value: its config and module, the named gates, and the sites.

`upcycle.py` adds gates to a trained model without a change of its outputs.
"""
