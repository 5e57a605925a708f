"""Rules that never fire because one before them refuses every request that they are for.

That is sure only while no rule in between edits the body which both look at: then nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from proxy.matching import DEFAULT_PATHS, Problem, compile_globs
from proxy.policy import schema
from proxy.policy.implications import implies, never_holds
from proxy.policy.matcher_facts import looks_at_body
from proxy.policy.packs import Arrangement, Pack, Written

_HARMLESS: Final = frozenset({"warn", "reject"})


def find_shadows(file: schema.PolicyFile, main: Pack, arrangement: Arrangement) -> Iterator[Problem]:
    """Yield the policy's own rules that are shadowed at each backend which they are for."""
    orders = {name: arrangement.for_backend(backend.presets) for name, backend in file.backends.items()}
    for written in main.rules:
        if never_holds(written.raw.get("when") or {}):
            continue  # told already
        found = [
            _shadow(written, orders[name], name)
            for name in orders
            if any(other is written for other in orders[name]) and _is_for(written.raw, name)
        ]
        if found and None not in found:
            refusing = next(other for other in found if other is not None)
            message = (
                f'the rule can never fire: "{refusing.rule.id}" ({refusing.rule.place}) refuses all that it is for'
            )
            yield written.place, message


def _is_for(raw: Any, backend: str) -> bool:
    when = raw.get("when") or {}
    return "backend" not in when or compile_globs(when["backend"])[1](backend)


def _shadow(written: Written, order: Sequence[Written], backend: str) -> Written | None:
    """Return the rule that refuses, at this backend, all that the written one is for."""
    when = _filled(written.raw) | {"backend": backend}
    before = list(takewhile(lambda other: other is not written, order))
    for index, other in enumerate(before):
        # What a reactive rule meets has passed all the others.
        between = order if written.rule.on_error is not None else before[index + 1 :]
        if _refuses(other) and implies(when, _filled(other.raw)) and _lets_be(other, between):
            return other
    return None


def _filled(raw: Any) -> dict[str, Any]:
    when: Mapping[str, Any] = raw.get("when") or {}
    return {"path": list(DEFAULT_PATHS), **when}


def _refuses(written: Written) -> bool:
    """Return whether the rule refuses each request that passes its matcher."""
    rule = written.rule
    return rule.on_error is None and rule.mode == "apply" and any(repair.name == "reject" for repair in rule.repairs)


def _lets_be(refusing: Written, between: Sequence[Written]) -> bool:
    """Return whether what the refusing rule looked at is still so after the rules in between."""
    if not looks_at_body(_filled(refusing.raw)):
        return True
    return all(
        other.rule.on_error is not None
        or other.rule.mode == "observe"
        or all(repair.name in _HARMLESS for repair in other.rule.repairs)
        for other in between
    )
