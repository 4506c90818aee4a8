"""Many runs that are compared: studies are data.

A study is planned, run, and its results are compared and held against published claims.
"""
