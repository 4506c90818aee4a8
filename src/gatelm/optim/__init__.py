"""Optimisers, parameter groups and learning-rate schedules, as configs.

`build.py` makes the optimiser that a config describes.
"""
