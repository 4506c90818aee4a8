"""One training run: its config, its steps, and the loop over them.

`saving/` keeps what a run leaves behind, `watching/` what is followed while it runs.
"""
