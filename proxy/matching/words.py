"""Values of a policy as an operator would write them, for messages and for `explain`."""

from __future__ import annotations

import json
from collections.abc import Mapping


class Expanded(str):
    """A string that `${VAR}` was expanded in; `source` is what the policy says, and what may be shown."""

    __slots__ = ("source",)
    source: str

    def __new__(cls, value: str, source: str) -> Expanded:
        self = super().__new__(cls, value)
        self.source = source
        return self


def flow(value: object) -> str:
    """Return the value in YAML's flow style, on one line; expanded variables as they were written."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, Expanded):
        return _line(value.source)
    return json.dumps(value, ensure_ascii=False, default=str)


def _key(key: object) -> str:
    return _line(key) if isinstance(key, str) else flow(key)


def _line(text: str) -> str:
    """Return a text as it stands, in quotes where it would not stay on its line."""
    return text if text.isprintable() else json.dumps(text)
