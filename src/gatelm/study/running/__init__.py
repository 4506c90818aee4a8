"""The runs of a plan in worker processes.

The study's folder, its lock, its progress, and the reuse of runs that are equal.
"""
