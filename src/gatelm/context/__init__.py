"""Models beyond the length they were trained on."""
