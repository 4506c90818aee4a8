"""All modules that import transformers."""
