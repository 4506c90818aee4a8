"""Retrieval tasks: generated texts that hold an answer, sized to the token."""

from gatelm.longcontext.tasks.base import RetrievalTask, Sample
from gatelm.longcontext.tasks.make import make_sample, shortest
from gatelm.longcontext.tasks.registry import TASKS

__all__ = ["TASKS", "RetrievalTask", "Sample", "make_sample", "shortest"]
