"""The definition of every metric, and the numbers under these names.

What is measured becomes a flat table of metrics and the tree of analysis.json here.
"""
