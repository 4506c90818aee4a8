"""Published statements as data, and what a study says about each."""
