"""One file for each model family: what it can express, its config keys, tensor names and loaders.

`registry` lists the families.
"""
