"""What can be measured on a model, and changed while it runs.

from gatelm.analysis import analyze
report = analyze(model, ids)
report.metrics["first_token_share"]
"""

from gatelm.analysis.notebook import Report, analyze
from gatelm.analysis.probe.interventions import intervene
from gatelm.analysis.probe.recording import keep, record

__all__ = ["Report", "analyze", "intervene", "keep", "record"]
