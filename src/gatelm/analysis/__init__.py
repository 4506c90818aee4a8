"""What can be measured on a model, and changed while it runs.

from gatelm.analysis import analyze
report = analyze(model, ids)
report.metrics["first_token_share"]
"""

from gatelm.analysis.interventions import intervene
from gatelm.analysis.recording import keep, record
from gatelm.analysis.report import Report, analyze

__all__ = ["Report", "analyze", "intervene", "keep", "record"]
