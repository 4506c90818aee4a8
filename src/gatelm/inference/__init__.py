"""Models that read a text in parts: prefill in chunks, window caches and streaming.

A prompt or a document of any length is read here without training.
"""
