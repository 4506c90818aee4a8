"""From finished runs to results: statistics over seeds, and comparisons of arms.

`collect.py` makes results.json and results.csv.
"""
