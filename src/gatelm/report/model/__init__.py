"""The report of `gatelm analyze`: one or several models, measured.

`page.py` puts the sections together; `entry.py` reads analysis.json.
"""
