"""What all families share: how configs and tensors are read, refused, folded and written."""
