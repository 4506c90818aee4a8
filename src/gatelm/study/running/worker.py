"""A process that trains one run after the other, as its parent hands them over."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gatelm.io.signals import STOPPING

if TYPE_CHECKING:
    from gatelm.train.watching.progress import Progress

STOP = "stop"
_REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class WorkerTask:
    """One run to train: its place in the plan, its pickled config and its folder.

    Pickled, so that what the config imports is imported as the run begins, not as the task arrives.
    """

    index: int
    config: bytes
    folder: Path


@dataclass(frozen=True)
class Step:
    """Message: how far a run is, as the trainer reported it."""

    index: int
    progress: Progress


@dataclass(frozen=True)
class Ended:
    """Message: a run left the worker; `error` and `details` (a traceback) if it failed."""

    index: int
    error: str | None = None
    details: str = ""


def work(connection: Connection, trainer: str) -> NoReturn:
    """Train what arrives on `connection`, until killed.

    What a terminal's Ctrl-C or end sends to it is left to the parent, which sends `STOP`; the
    trainer then saves and returns. When the parent is gone, so is the point of computing: the
    process ends at once, and the checkpoints already written serve the next start.
    """
    stop = threading.Event()
    tasks: queue.SimpleQueue[WorkerTask] = queue.SimpleQueue()
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    threading.Thread(target=_listen, args=(connection, tasks, stop), daemon=True).start()
    while True:
        connection.send(_train(connection, tasks.get(), trainer, stop))


def _listen(
    connection: Connection, tasks: queue.SimpleQueue[WorkerTask], stop: threading.Event
) -> None:
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            os._exit(1)
        if message == STOP:
            stop.set()
        else:
            tasks.put(message)


def _train(connection: Connection, task: WorkerTask, trainer: str, stop: threading.Event) -> Ended:
    last = 0.0

    def report(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _REPORT_SECONDS and progress.step < progress.total_steps:
            return
        last = now
        connection.send(Step(task.index, progress))

    try:
        task.folder.mkdir(parents=True, exist_ok=True)
        with _output_to(task.folder / "output.log"):
            config, train = pickle.loads(task.config), resolve(trainer)
            train(config, task.folder, resume="auto", report=report, should_stop=stop.is_set)
    except Exception as error:
        return Ended(task.index, describe(error), traceback.format_exc())
    return Ended(task.index)


def resolve(path: str) -> Any:
    """Import the object at `package.module:name`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def describe(error: BaseException) -> str:
    """Describe an error in one line; its type is added unless it is a user's mistake."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


@contextlib.contextmanager
def _output_to(path: Path) -> Any:
    """Send all output of the run to a file, also from below Python."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab") as file:
        saved = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for target, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, target)
                os.close(copy)
    if path.stat().st_size == 0:
        path.unlink()
