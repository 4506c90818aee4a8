"""Text and synthetic data: prepared shards, packed rows, batches that depend on the step alone."""
