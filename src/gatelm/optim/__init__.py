"""Optimisers, parameter groups and learning-rate schedules, as configs.

An optimiser is a class in `config.py` that builds what it describes.
"""
