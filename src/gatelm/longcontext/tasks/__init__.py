"""Retrieval tasks: generated texts that hold an answer, sized to the token."""

from gatelm.longcontext.tasks.base import Sample, Task
from gatelm.longcontext.tasks.make import make_sample, shortest
from gatelm.longcontext.tasks.registry import TASKS

__all__ = ["TASKS", "Sample", "Task", "make_sample", "shortest"]
