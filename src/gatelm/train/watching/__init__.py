"""What is followed while a run goes on: metrics, spikes, routers and the progress display.

Nothing here changes the weights.
"""
