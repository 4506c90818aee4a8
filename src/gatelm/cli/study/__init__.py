"""The commands under `gatelm study`.

They are listed in `commands.py`; curves and claims have files of their own.
"""
