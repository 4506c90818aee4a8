"""Naive references that tests and docs share."""
