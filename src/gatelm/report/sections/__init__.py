"""The sections of a study's report, each a function that adds to a page."""
