"""The command `gatelm analyze`.

Its options stand in `commands.py`, the work in `run.py`.
"""
