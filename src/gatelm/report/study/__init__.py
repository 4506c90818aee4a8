"""The report of a study: its sections, its claims and its export.

`build.py` puts the sections together.
"""
