"""gatelm's models as classes of transformers: wrapper, cache, padding and generation.

Models of others that need code of their own to load are here too.
"""
