"""A pretrained model's attention sinks as gates, in closed form: measure, rewrite, fit, check."""
