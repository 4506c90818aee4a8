"""Measure trained models: perplexity on text, and tasks of lm-evaluation-harness."""
