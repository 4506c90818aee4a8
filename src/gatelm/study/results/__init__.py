"""Results of finished runs: statistics over seeds, and comparisons of arms.

`collect.py` makes results.json and results.csv.
"""
