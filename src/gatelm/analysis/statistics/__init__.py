"""What is computed from the tensors that a probe shows, one statistic a file.

`totals.py` adds them up over batches.
"""
