"""Monitoring of a run: metrics, spikes, routers and progress.

Nothing here changes the weights.
"""
