"""Which rules the cases leave untried: those that never fired, and those that never let a request be.

Counted are the rules that stand in the policy's own file; those of its presets are tried by the presets' own cases,
and counted where the cases are for a preset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from proxy.policy import Rule
from proxy.policy_tests.suite import Suite


@dataclass(frozen=True, slots=True)
class Gap:
    """A rule that the cases leave untried. `place` is file:line:column of the rule."""

    rule: str
    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}: the rule {self.rule} {self.why}"


def find_gaps(suites: Iterable[Suite]) -> list[Gap]:
    """Return the gaps that the cases of each policy together leave, in the order of its rules."""
    policies: dict[str, list[Suite]] = {}
    for suite in suites:
        policies.setdefault(suite.key, []).append(suite)
    return [gap for together in policies.values() for gap in _gaps(together)]


def _gaps(suites: list[Suite]) -> Iterator[Gap]:
    outcomes = [verdict.outcome for suite in suites for verdict in suite.verdicts]
    fired = frozenset[str]().union(*(outcome.fired for outcome in outcomes))
    passed = frozenset[str]().union(*(outcome.passed for outcome in outcomes))
    for rule in own_rules(suites[0]):
        if rule.id not in fired:
            yield Gap(rule.id, rule.place, "never fired in any case")
        if rule.id not in passed:
            let_be = "an answer of `after` be" if rule.on_error is not None else "a request be"
            yield Gap(rule.id, rule.place, f"was never passed over: no case has it let {let_be}")


def own_rules(suite: Suite) -> tuple[Rule, ...]:
    """Return the rules that stand in the policy's own file, each once."""
    rules = {rule.id: rule for backend in suite.policy.backends for rule in backend.rules}
    return tuple(rule for rule in rules.values() if rule.place.startswith(f"{suite.policy_file}:"))
