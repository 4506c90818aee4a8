"""Everything that imports transformers."""
