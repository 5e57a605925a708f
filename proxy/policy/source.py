"""A policy's or preset's text → raw values with variables expanded, places known, faults gathered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from proxy.errors import Fault
from proxy.matching import KEY, Expanded, Problem, flow
from proxy.policy.validate import look_up
from proxy.policy.variables import expand
from proxy.policy.yaml_text import Document, parse_yaml

# A shorter value is no secret, and would be met in the middle of words.
_SECRET_CHARACTERS = 4


class Source:
    """One text on its way to a policy; faults gather here, each place blamed by the first to meet it."""

    def __init__(self, text: str, file: str, environ: Mapping[str, str], *, first_url: str | None = None) -> None:
        self.document: Document = parse_yaml(text, file)
        self.faults: list[Fault] = []
        self._blamed: set[tuple[Any, ...]] = set()
        self._written: dict[str, str] = {}
        self.value: Any = None
        value, problems = _with_string_keys(self.document.value, ())
        self.add(problems)
        self.value, problems = expand(_with_first_url(value, first_url), environ)
        self._written = {found: found.source for found in _expanded(self.value) if len(found) >= _SECRET_CHARACTERS}
        self.add(problems)
        self._blamed |= {place for place, _ in problems}

    def add(self, problems: Iterable[Problem], *under: str | int) -> None:
        """Take note of problems; of a value that could not be expanded nothing more is said."""
        for place, message in problems:
            if (*under, *place) not in self._blamed:
                self.faults.append(self.fault((*under, *place), message))

    def fault(self, place: tuple[Any, ...], message: str) -> Fault:
        """Return the fault at a place; where it names the value of a variable, it names the variable instead."""
        hidden = {form: written for value, written in self._written.items() for form in (value, repr(str(value))[1:-1])}
        own = look_up(self.value, place)
        if isinstance(own, Expanded):
            # A message about a part of it names that.
            parts = set(re.findall(r"\w+", own)) - set(re.findall(r"\w+", own.source))
            hidden |= {part: own.source for part in parts if len(part) >= _SECRET_CHARACTERS}
        if hidden:
            # In one pass, the longest first: what is put in is not looked at again.
            forms = "|".join(map(re.escape, sorted(hidden, key=len, reverse=True)))
            message = re.sub(forms, lambda met: hidden[met[0]], message)
        return self.document.fault(place, message)

    def position(self, place: tuple[str | int, ...]) -> str:
        """Return file:line:column of a place."""
        line, column = self.document.position(place)
        return f"{self.document.file}:{line}:{column}"

    def rules(self) -> list[Any]:
        """Return the raw rules, none where the text has no list of them."""
        rules = self.value.get("rules") if isinstance(self.value, dict) else None
        return rules if isinstance(rules, list) else []


def _expanded(value: Any) -> Iterator[Expanded]:
    """Yield all strings that variables were expanded in."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _expanded(item)
    elif isinstance(value, Expanded):
        yield value


def _with_string_keys(value: Any, place: tuple[Any, ...]) -> tuple[Any, list[Problem]]:
    """Return the value without the keys that are no strings, and these; only the tables of `map` may have some."""
    problems: list[Problem] = []
    if isinstance(value, list):
        items = [_with_string_keys(item, (*place, index)) for index, item in enumerate(value)]
        return [item for item, _ in items], [problem for _, inner in items for problem in inner]
    if not isinstance(value, dict):
        return value, problems
    kept: dict[Any, Any] = {}
    for key, item in value.items():
        if isinstance(key, str) or place[-2:-1] == ("map",):
            kept[key], inner = _with_string_keys(item, (*place, key))
            problems += inner
        else:
            problems.append(((*place, key, KEY), f'{flow(key)} can\'t be a key here: write "{flow(key)}" in quotes'))
    return kept, problems


def _with_first_url(value: Any, url: str | None) -> Any:
    """Return the value with the url of its first backend replaced by one that is taken as it stands."""
    backends = value.get("backends") if isinstance(value, dict) else None
    if url is None or not isinstance(backends, dict) or not backends:
        return value
    name, backend = next(iter(backends.items()))
    if not isinstance(backend, dict):
        return value
    backend = {**backend, "url": url.replace("${", "$${")}
    return {**value, "backends": {**backends, name: backend}}
