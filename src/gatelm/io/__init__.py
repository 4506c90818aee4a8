"""Writing to the disk: files that are written whole or not at all, and folders held by one process.

Every package may import it. It imports config, the standard library and safetensors' error.
"""
