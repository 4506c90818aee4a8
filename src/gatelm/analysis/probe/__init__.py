"""What reads a model: probes, taps at the named sites, recording and intervention.

Everything that is measured comes through the protocol in `protocol.py`.
"""
