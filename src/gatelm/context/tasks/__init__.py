"""Retrieval tasks: generated texts that hold an answer, sized to the token."""

from gatelm.context.tasks.base import Sample, Task
from gatelm.context.tasks.make import make_sample, shortest
from gatelm.context.tasks.registry import TASKS

__all__ = ["TASKS", "Sample", "Task", "make_sample", "shortest"]
