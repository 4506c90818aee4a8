"""All tasks by name."""

from __future__ import annotations

from gatelm.longcontext.tasks.base import RetrievalTask
from gatelm.longcontext.tasks.lists import common_words, frequent_words, variable_tracking
from gatelm.longcontext.tasks.needles import RULER, niah, passkey

TASKS: dict[str, RetrievalTask] = {
    task.name: task
    for task in (
        RetrievalTask("passkey", "a number in noise", "arXiv 2305.16300", passkey, has_depth=True),
        niah("niah-single-1", "a number in noise", haystack="noise"),
        niah("niah-single-2", "a number in prose", haystack="prose"),
        niah("niah-single-3", "a UUID in prose", haystack="prose", value="code"),
        niah("niah-multikey-1", "one of four numbers in prose", haystack="prose", keys=4),
        niah("niah-multikey-2", "one number among nothing but numbers", haystack="needles"),
        niah(
            "niah-multikey-3",
            "one UUID by its UUID among nothing but UUIDs",
            haystack="needles",
            value="code",
            key="code",
        ),
        niah("niah-multivalue", "four numbers of one key in prose", haystack="prose", values=4),
        niah("niah-multiquery", "the numbers of four keys in prose", haystack="prose", queries=4),
        RetrievalTask("variable-tracking", "five variables of one value", RULER, variable_tracking),
        RetrievalTask("common-words", "the ten words that come most often", RULER, common_words),
        RetrievalTask(
            "frequent-words", "the three most frequent coded words", RULER, frequent_words
        ),
    )
}
"""Names to tasks; to add one is to add an entry."""
