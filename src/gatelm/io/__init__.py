"""Files that are written whole or not at all.

Imports config and the standard library, and can be imported from everywhere.
"""
