"""Whether a reactive rule knows a failure, and what its repairs are with what the failure's text gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.matching import BadTest
from proxy.policy import OnError, Rule
from proxy.refusals import Failure
from proxy.repairs.card import Act


def captures_of(on_error: OnError, failure: Failure) -> list[Mapping[str, str]]:
    """Return the captures of each time that the failure is one the rule knows; [] when it is not."""
    if on_error.fewer_choices != failure.fewer_choices or not _is_told(on_error, failure):
        return []
    text, captures = failure.text, {}
    if on_error.message is not None:
        match = on_error.message.search(failure.text)
        if match is None:
            return []
        text, captures = match[0], _named(match.groupdict())
    if on_error.each is None:
        return [captures]
    return [captures | _named(found.groupdict()) for found in on_error.each.finditer(text)]


def _is_told(on_error: OnError, failure: Failure) -> bool:
    if on_error.status is not None and failure.status not in on_error.status:
        return False
    if on_error.stream and failure.stream not in on_error.stream:
        return False
    return on_error.code in (None, failure.code) and on_error.param in (None, failure.param)


def _named(groups: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in groups.items() if value is not None}


Knowing = tuple[tuple[dict[str, Any], ...], tuple[tuple[str, Act], ...]]
"""The entries of a rule's `repair` as a policy would have them, one failure's captures filled in, and their acts."""


def knowings_of(rule: Rule, failure: Failure) -> list[Knowing]:
    """Return the rule's repairs for each time that the failure is one it knows; [] when it does not know it."""
    knowings: list[Knowing] = []
    for captures in captures_of(rule.on_error, failure) if rule.on_error is not None else ():
        try:
            acts = tuple((repair.name, repair.instantiate(captures)) for repair in rule.repairs)
        except BadTest:
            # What the text gave means nothing in this repair, so the rule does not know this failure.
            return []
        knowings.append((tuple({repair.name: repair.filled(captures)} for repair in rule.repairs), acts))
    return knowings
