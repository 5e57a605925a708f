"""A rule's `when`, compiled: the checks on a request's facts, all of which must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from proxy.body import UnreadableBody
from proxy.fields import ABSENT
from proxy.matching.checks import Check, Facts, Group, body_check, glob_check, header_check, query_check
from proxy.matching.problems import KEY, BadTest, did_you_mean, gather, shown
from proxy.matching.words import flow

DEFAULT_PATHS: Final = ("/v1/chat/completions", "/v1/completions")
EVERY_PATH: Final = ("*",)


@dataclass(frozen=True, slots=True)
class Matcher:
    """All checks of a `when`. `needs` are the top-level body fields without which it can't hold.

    For an index: `groups` are the clues (one of each) without which it can't hold, `reads` the top-level fields that it
    may look at, None for any.
    """

    checks: tuple[Check, ...]
    paths: tuple[str, ...]
    needs: frozenset[str]
    groups: tuple[Group, ...] = ()
    reads: frozenset[str | None] = frozenset()

    def holds(self, facts: Facts) -> bool:
        """Return whether every check holds; no test is made where a field that one needs is absent.

        Raises: UnreadableBody where a test looks at a field that can't be decoded.
        """
        if self.needs and (facts.body is None or not facts.body.has_all(self.needs)):
            return False
        for check in self.checks:  # noqa: SIM110 a generator for each rule that is tried takes longer than most checks
            if not check.holds(facts):
                return False
        return True

    def first_miss(self, facts: Facts) -> tuple[str, Any] | None:
        """Return the label of the first check that fails and what it met; None when all hold. Raises: as `holds`."""
        try:
            missed = next((check for check in self.checks if not check.holds(facts)), None)
        except UnreadableBody:
            absent = next((check.label for check in self.checks if not _has_all(facts, check.needs)), None)
            if absent is None:
                raise
            return absent, ABSENT
        return None if missed is None else (missed.label, _met(missed, facts))


def _met(check: Check, facts: Facts) -> Any:
    """Return what a check met; it may tell more than it had to look at to fail, of which some may be no JSON."""
    try:
        return check.met(facts)
    except UnreadableBody:
        return "unreadable"


def _has_all(facts: Facts, names: frozenset[str]) -> bool:
    return not names or (facts.body is not None and facts.body.has_all(names))


def compile_matcher(raw: object) -> Matcher:
    """Return the matcher of a rule's `when`; without `path` it is for the two completion endpoints.

    Raises: BadTest with every problem of it.
    """
    given = {} if raw is None else raw
    if isinstance(given, Mapping) and "path" not in given:
        given = {"path": list(DEFAULT_PATHS), **given}
    return _matcher(given)


def _matcher(raw: object) -> Matcher:
    if not isinstance(raw, Mapping):
        raise BadTest.at(f"expected a matcher (a mapping of {', '.join(_KEYS)}), got {shown(raw)}")
    checks = list(chain.from_iterable(gather(raw.items(), _checks)))
    return Matcher(
        checks=tuple(checks),
        paths=_paths(raw.get("path")),
        needs=frozenset[str]().union(*(check.needs for check in checks)),
        groups=tuple(group for check in checks for group in check.groups),
        reads=_reads(checks),
    )


def _reads(parts: Iterable[Check | Matcher]) -> frozenset[str | None]:
    return frozenset[str | None]().union(*(part.reads for part in parts))


def _checks(key: object, raw: object) -> list[Check]:
    if not isinstance(key, str) or key not in _KEYS:
        raise BadTest.at(f'unknown key "{key}" in a matcher{did_you_mean(key, _KEYS)}', KEY)
    return _KEYS[key](raw)


def _paths(raw: object) -> tuple[str, ...]:
    if raw is None:
        return EVERY_PATH
    return tuple(map(str, raw)) if isinstance(raw, list) else (str(raw),)


def _glob(name: str) -> Callable[[object], list[Check]]:
    return lambda raw: [glob_check(name, raw)]


def _named(kind: str, make: Callable[[str, object], Check]) -> Callable[[object], list[Check]]:
    """Return what compiles a mapping of names to tests."""

    def one(name: object, test: object) -> Check:
        if not isinstance(name, str):
            raise BadTest.at(f"expected a {kind} (a string), got {shown(name)}", KEY)
        return make(name, test)

    def compile_all(raw: object) -> list[Check]:
        if not isinstance(raw, Mapping):
            raise BadTest.at(f"expected a mapping of {kind}s to tests, got {shown(raw)}")
        return gather(raw.items(), one)

    return compile_all


def _any(raw: object) -> list[Check]:
    if not isinstance(raw, list) or not raw:
        raise BadTest.at(f"expected a list of matchers, got {'an empty one' if raw == [] else shown(raw)}")
    matchers = gather(enumerate(raw), lambda _index, item: _matcher(item))

    def met(facts: Facts) -> dict[str, Any]:
        return dict(miss for matcher in matchers if (miss := matcher.first_miss(facts)))

    return [
        Check(
            label=f"any: {flow(raw)}",
            holds=lambda facts: any(matcher.holds(facts) for matcher in matchers),
            met=met,
            needs=frozenset.intersection(*(matcher.needs for matcher in matchers)),
            groups=_of_any(matchers),
            reads=_reads(matchers),
            is_of_body=all(map(_is_of_body, matchers)),
        )
    ]


def _of_any(matchers: list[Matcher]) -> tuple[Group, ...]:
    """Return the clues of which one must hold, where each of the matchers has some."""
    narrowest = [_narrowest(matcher) for matcher in matchers]
    return (tuple(chain.from_iterable(narrowest)),) if all(narrowest) else ()


def _narrowest(matcher: Matcher) -> Group:
    """Return the fewest clues that a matcher needs one of, none of which holds of what is absent."""
    groups = [group for group in matcher.groups if not any(clue.takes_absent for clue in group)]
    return min(groups, key=len, default=())


def _not(raw: object) -> list[Check]:
    inner = _matcher(raw)

    def met(facts: Facts) -> dict[str, Any]:
        return {check.label: check.met(facts) for check in inner.checks}

    return [
        Check(
            label=f"not: {flow(raw)}",
            holds=lambda facts: not inner.holds(facts),
            met=met,
            reads=inner.reads,
            is_of_body=_is_of_body(inner),
        )
    ]


def _is_of_body(matcher: Matcher) -> bool:
    return all(check.is_of_body for check in matcher.checks)


_KEYS: Final[Mapping[str, Callable[[object], list[Check]]]] = {
    "path": _glob("path"),
    "method": _glob("method"),
    "model": _glob("model"),
    "backend": _glob("backend"),
    "header": _named("header name", header_check),
    "query": _named("query parameter", query_check),
    "body": _named("field path", body_check),
    "any": _any,
    "not": _not,
}
