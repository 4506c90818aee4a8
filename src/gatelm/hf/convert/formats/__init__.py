"""Model formats of others: what each can express, and how its config and tensors map to ours."""
