"""The model: gates, attention and what surrounds it; imports torch and config only."""
