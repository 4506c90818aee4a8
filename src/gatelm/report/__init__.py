"""Reports as one HTML file: the page, its numbers, and the parts that all reports share.

`study/` and `model/` hold the sections of the two kinds of report, `charts/` the charts.
"""
