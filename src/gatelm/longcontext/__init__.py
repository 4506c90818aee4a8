"""Models beyond the length they were trained on.

Scalings of positions, extension of a model, and retrieval from long texts.
"""
