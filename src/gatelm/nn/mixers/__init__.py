"""Sequence mixers beside softmax attention; `config.py` is the union of all mixers' configs.

A mixer is one file here, with its config and its module, and one entry in `config.MixerConfig`.
"""
