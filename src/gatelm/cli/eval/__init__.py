"""The command `gatelm eval`.

Its options stand in `commands.py`; each kind of evaluation has a file.
"""
