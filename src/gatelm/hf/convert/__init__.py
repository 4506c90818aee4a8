"""Conversion of models from and to the formats of transformers.

`convert.py` leads from the source to the verified folder; `formats/` holds the formats.
"""
