"""Where a token stands: rotary positions, their scaling to longer texts, and ALiBi.

Learned positions are part of the model itself.
"""
