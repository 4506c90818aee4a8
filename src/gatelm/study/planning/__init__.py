"""Planning: a study's YAML becomes the list of its runs.

Configs, arms, matched sizes, and what the runs will cost.
"""
