"""What follows from a matcher: that no request passes it, or that what passes one passes another.

Only what is sure is said: where a glob meets a glob, a test
asks about lengths, or the matchers are too large to be thought through, the answer is that nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from proxy.fields import ABSENT, ANY, Step
from proxy.matching import BadTest, compile_test
from proxy.policy import contradictions
from proxy.policy.matcher_facts import AnyOf, Fact, Glob, Not, Value, covers, facts_of, may_meet

_MAX_STEPS: Final = 2000


class _TooLarge(Exception):
    """The matchers would take too long to think through."""


def never_holds(when: Mapping[str, Any]) -> bool:
    """Return whether it is sure that no request passes the matcher."""
    try:
        return _Thought().is_impossible(list(facts_of(when)))
    except _TooLarge:
        return False


def implies(when: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether it is sure that every request which passes the one matcher passes the other."""
    try:
        return _Thought().follows_all(list(facts_of(when)), wanted)
    except _TooLarge:
        return False


class _Thought:
    """One train of thought, and how far it may go."""

    def __init__(self) -> None:
        self._steps = 0

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise _TooLarge

    def is_impossible(self, known: list[Fact]) -> bool:
        """Return whether the facts can't all be true."""
        self._step()
        if _globs_part(known) or _values_part(known) or _parents_part(known):
            return True
        return any(self._refutes(_without(known, fact), fact) for fact in known)

    def _refutes(self, known: list[Fact], fact: Fact) -> bool:
        if isinstance(fact, Not):
            return self.follows_all(known, fact.matcher)
        if isinstance(fact, AnyOf):
            return all(self.is_impossible([*known, *facts_of(option)]) for option in fact.options)
        return False

    def follows_all(self, known: list[Fact], matcher: Mapping[str, Any]) -> bool:
        """Return whether the matcher holds wherever the facts are true."""
        return all(self._follows(known, fact) for fact in facts_of(matcher))

    def _follows(self, known: list[Fact], fact: Fact) -> bool:
        self._step()
        return self._follows_at_once(known, fact) or any(
            all(self._follows([*_without(known, split), *facts_of(option)], fact) for option in split.options)
            for split in known
            if isinstance(split, AnyOf)
        )

    def _follows_at_once(self, known: list[Fact], fact: Fact) -> bool:
        if isinstance(fact, Glob):
            return _glob_follows(known, fact)
        if isinstance(fact, Value):
            return _value_follows(known, fact)
        if isinstance(fact, AnyOf):
            return any(self.follows_all(known, option) for option in fact.options)
        inner = list(facts_of(fact.matcher))
        if any(isinstance(other, Not) and self.follows_all(inner, other.matcher) for other in known):
            return True
        return self.is_impossible([*known, *inner])


def _without(known: list[Fact], fact: Fact) -> list[Fact]:
    return [other for other in known if other is not fact]


def _glob_follows(known: list[Fact], fact: Glob) -> bool:
    if "*" in fact.globs and fact.name != "model":  # a request may name no model
        return True
    return any(
        all(any(covers(wide, narrow, fact.name) for wide in fact.globs) for narrow in other.globs)
        for other in known
        if isinstance(other, Glob) and other.name == fact.name
    )


def _globs_part(known: list[Fact]) -> bool:
    globs = [fact for fact in known if isinstance(fact, Glob)]
    return any(
        one.name == two.name and not any(may_meet(a, b, one.name) for a in one.globs for b in two.globs)
        for index, one in enumerate(globs)
        for two in globs[index + 1 :]
    )


def _value_follows(known: list[Fact], fact: Value) -> bool:
    tests = [other.test for other in _same(known, fact)]
    if fact.is_single:
        return contradictions.implies(tests, fact.test)
    return any(contradictions.implies([test], fact.test) for test in tests)


def _same(known: list[Fact], fact: Value) -> list[Value]:
    return [other for other in known if isinstance(other, Value) and (other.kind, other.key) == (fact.kind, fact.key)]


def _values_part(known: list[Fact]) -> bool:
    return any(
        contradictions.never_holds(*[other.test for other in _same(known, fact)] if fact.is_single else [fact.test])
        for fact in known
        if isinstance(fact, Value)
    )


def _parents_part(known: list[Fact]) -> bool:
    """Return whether a field is asked for inside of one that can't hold any."""
    fields = [fact for fact in known if isinstance(fact, Value) and fact.kind == "body"]
    return any(
        parent.is_single
        and len(parent.key) < len(child.key)
        and child.key[: len(parent.key)] == parent.key
        and _needs_value(child.test)
        and contradictions.never_holds(parent.test, {"type": _holder(child.key[len(parent.key)])})
        for parent in fields
        for child in fields
    )


def _needs_value(test: Any) -> bool:
    """Return whether an absent field fails the test, for sure."""
    try:
        return not compile_test(test)(ABSENT, {})
    except BadTest:  # a variable stands for a number
        return False


def _holder(step: Step) -> list[str]:
    if step is ANY:
        return ["object", "array"]
    return ["array"] if isinstance(step, int) else ["object"]
