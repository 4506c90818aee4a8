"""From a study's YAML to the list of its runs.

Configs, arms, matched sizes, and what the runs will cost.
"""
