"""Charts: rows of plain data in, an Altair chart out.

The theme, the axes and the export of figures are here too.
"""
