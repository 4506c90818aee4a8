"""What a run writes and reads back: checkpoints, its state, its folder, the exported model.

Random number generators are saved and restored here too.
"""
