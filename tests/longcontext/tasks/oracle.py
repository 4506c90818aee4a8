"""Answers found in the text itself, by reading it as a person would: no use of the answers."""

import re
from collections import Counter


def passkey(text):
    return re.search(r"The pass key is (\d+)\.", text)[1]


def needles(text):
    asked = re.search(r"of ([\w\-, ]+?)\? The secret", text)[1]
    keys = re.split(r", | and ", asked)
    said = re.findall(r"The secret (?:number|code) of ([\w-]+) is ([\w-]+)\.", text)
    return " ".join(value for key, value in said if key in keys)


def variables(text):
    text = text.rsplit("\n\n", 1)[-1]
    value = re.search(r"have the value (\d+)\?", text)[1]
    known = {}
    for name, source in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", text):
        known[name] = known.get(source, source)
    return " ".join(name for name, its in known.items() if its == value)


def listed(text):
    entries = re.findall(r"\d+\. ([\w-]+)", text.rsplit("\n\n", 1)[-1])
    return " ".join(word for word, _ in Counter(entries).most_common(10))


def coded(text):
    words = re.findall(r"\b[a-z]{6}\b", text.split("do not count.", 1)[1].split(" Which 3", 1)[0])
    return " ".join(word for word, _ in Counter(words).most_common(3))


def answer(task, text):
    if task == "passkey":
        return passkey(text)
    if task.startswith("niah"):
        return needles(text)
    return {
        "variable-tracking": variables,
        "common-words": listed,
        "frequent-words": coded,
    }[task](text)
