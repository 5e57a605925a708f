"""What a rule needs of a request's body to do anything: the clues of its matcher, and those of its repairs.

when: {body: {n: {gt: 1}}}      →  n must be there, and above 1
repair: [{clamp: {seed: …}}]    →  one of the fields that the repairs work on must be there, and out of bounds
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from proxy.body import Body
from proxy.fields import ABSENT, ANY, Step, parse_path
from proxy.matching import Clue, Group, compile_test
from proxy.matching.clues import Words, along, both, demanded, may, missing, references, tops
from proxy.policy.repair import CompiledRepair
from proxy.policy.rule import Rule
from proxy.repairs.card import Act, Draft, Target


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of each group one clue must hold for a rule to do anything. `reads`: the fields looked at, None for any."""

    groups: tuple[Group, ...]
    reads: frozenset[str | None]


def evidence_of(rule: Rule) -> Evidence:
    """Return what a rule needs of the body."""
    groups, reads = rule.matcher.groups, rule.matcher.reads
    targeted = [_clues(repair) for repair in rule.repairs]
    told = [clues for clues in targeted if clues is not None]
    if len(told) < len(targeted):
        return Evidence(groups, reads)
    targets = [target for repair in rule.repairs for target in repair.targets or ()]
    return Evidence(
        groups=(*groups, tuple(clue for clues in told for clue in clues)),
        reads=reads.union(*map(_reads, targets)),
    )


def _clues(repair: CompiledRepair) -> list[Clue] | None:
    """Return the clues of which one must hold for a repair to do anything; None where that can't be told."""
    if repair.targets is None or repair.act is None:
        return None
    clues = [_clue(target, repair.act) for target in repair.targets]
    told = [clue for clue in clues if clue is not None]
    return told if len(told) == len(clues) else None


def _clue(target: Target, act: Act) -> Clue | None:
    field, steps = target.path.top, target.path.steps
    if field is None:
        return None
    words = demanded(steps[1:], target.test)
    is_alone = not references([target.test, target.where, target.options])
    for inner, raw in _asked(target):
        if inner[:1] == (field,):
            words = both(words, _of_element(inner[1:], raw))
        else:
            is_alone = False
    return Clue(field, _trial(field, act) if is_alone else may, words, is_whole=len(steps) == 1)


def _trial(field: str, act: Act) -> Callable[[Any], bool]:
    """Return whether the act does something to a body of this one field."""
    return lambda value: act(Draft(Body.of({field: value}))) is not None


def _asked(target: Target) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """Yield the steps from the body to what each test of a `where` is asked of, and the test."""
    steps = target.path.steps
    depth = max((index + 1 for index, step in enumerate(steps) if step is ANY), default=0)
    for text, raw in (target.where or {}).items():
        yield (*steps[:depth], *parse_path(text).steps), raw


def _of_element(steps: tuple[Step, ...], raw: Any) -> tuple[Words, ...]:
    if not compile_test(raw)(ABSENT, {}):
        return demanded(steps, raw)
    is_plain = len(steps) == 2 and steps[0] is ANY and isinstance(steps[1], str)
    return missing(str(steps[1])) if raw == {"exists": False} and is_plain else along(())


def _reads(target: Target) -> frozenset[str | None]:
    own = frozenset([target.path.top])
    asked = frozenset(_name(steps) for steps, _ in _asked(target))
    return own | asked | tops(references([target.test, target.where, target.options]))


def _name(steps: tuple[Step, ...]) -> str | None:
    return steps[0] if steps and isinstance(steps[0], str) else None
