"""Which of a backend's rules could do anything for a request, told without trying them one by one.

    path, method, model ──► Selection: the rules that are for such requests       (remembered)
    each field's value  ──► Look: the bits of the clues that hold for it          (remembered, by value or words)
    a body's frame      ──► the bits of all its fields but the messages           (remembered, by the frame)
    the bits together   ──► the positions of the rules whose every group has one  (remembered, by bits)

The answer may name rules that will do nothing, and leaves out none that would: the engine runs those it is given as it
would run them all. Where a field that some rule reads can't be decoded, all rules are named, so that the one that meets
it is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from proxy.body import Body, UnreadableBody
from proxy.frames import Framed
from proxy.matching import Check, Facts
from proxy.policy.evidence import Evidence, evidence_of
from proxy.policy.looks import Look
from proxy.policy.memory import Memory
from proxy.policy.rule import Rule
from proxy.repairs.card import FrameAct
from proxy.turns import MESSAGES

_MOST_SELECTIONS: Final = 64
_LONGEST_KEPT: Final = 512  # of a path and a model together

Positions = tuple[int, ...]


@dataclass(slots=True)
class Selection:
    """The rules for requests with one path, method and model: those that act beforehand, and the reactive ones.

    `free`: positions of rules that need nothing of the body. `last`: of the last one that acts beforehand.
    `surely_reacts`: a reactive rule needs nothing further.
    """

    bits: int
    free: Positions
    last: int
    reactive: tuple[Rule, ...]
    counting: tuple[Rule, ...]
    surely_reacts: bool
    answers: dict[int, Positions]


class RuleIndex:
    """An index over the rules of one backend, in their order."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._everything = tuple(at for at, rule in enumerate(rules) if rule.on_error is None)
        self._untold = [_untold(rule) for rule in self.rules]
        self._of_frame = [_is_of_frame(rule, untold) for rule, untold in zip(self.rules, self._untold, strict=True)]
        self._owners: list[int] = []  # of each bit: the position of its rule
        self._required: dict[int, int] = {}  # of each rule that needs something: its bits
        self._memory = Memory()
        self._answers = Memory()
        self._looks: dict[str, Look] = {}
        self._statics = _statics(rules)
        self._selections: dict[tuple[str, str, str | None], Selection] = self._memory.new()
        self._made: dict[tuple[bool, ...], Selection] = {}
        evidence = {at: evidence_of(rules[at]) for at in self._everything}
        self._reads_all = any(None in found.reads for found in evidence.values())
        for at, found in evidence.items():
            self._add(at, found)
        self._absent = sum(look.absent for look in self._looks.values())  # no bit is of two fields
        self._of_messages = self._looks.get(MESSAGES)
        self._takes_frames = self._of_messages is not None or not self._reads_all

    def _add(self, at: int, evidence: Evidence) -> None:
        required = 0
        for group in evidence.groups:
            bit = 1 << len(self._owners)
            self._owners.append(at)
            required |= bit
            for clue in group:
                self._look(clue.field).add(bit, clue)
        if required:
            self._required[at] = required
        for name in evidence.reads:
            if name is not None:
                self._look(name)

    def _look(self, name: str) -> Look:
        if name not in self._looks:
            self._looks[name] = Look(self._memory)
        return self._looks[name]

    def selection(self, facts: Facts) -> Selection:
        """Return the rules for requests like this one."""
        key = (facts.path, facts.method, facts.model)
        found = self._selections.get(key)
        if found is None:
            found = self._select(facts)
            if len(facts.path) + len(facts.model or "") <= _LONGEST_KEPT:
                self._memory.keep(self._selections, key, found)
        return found

    def _select(self, facts: Facts) -> Selection:
        verdicts = tuple(all(check.holds(facts) for check in checks) for checks, _ in self._statics)
        if verdicts not in self._made:
            if len(self._made) >= _MOST_SELECTIONS:
                self._made.clear()
                self._selections.clear()
                self._answers = Memory()
            self._made[verdicts] = self._selected(verdicts)
        return self._made[verdicts]

    def _selected(self, verdicts: Sequence[bool]) -> Selection:
        held = (positions for (_, positions), holds in zip(self._statics, verdicts, strict=True) if holds)
        positions = sorted(chain.from_iterable(held))
        early = [at for at in positions if self.rules[at].on_error is None]
        reactive = tuple(self.rules[at] for at in positions if self.rules[at].on_error is not None)
        bits = 0
        for at in early:
            bits |= self._required.get(at, 0)
        return Selection(
            bits=bits,
            free=tuple(at for at in early if at not in self._required),
            last=early[-1] if early else -1,
            reactive=reactive,
            counting=tuple(rule for rule in reactive if rule.on_error and rule.on_error.fewer_choices),
            surely_reacts=any(all(check.glob for check in rule.matcher.checks) for rule in reactive),
            answers=self._answers.new(),
        )

    def possible(self, body: Body | None, selection: Selection, seen: dict[int, int]) -> Positions:
        """Return the positions of the rules that could do something, in order.

        `seen` keeps what was found of the values that a request came with, for when it is asked again after an edit.
        """
        try:
            if type(body) is Framed and self._takes_frames:
                around = body.frame.told.get(self)
                bits = around if around is not None else self._keep(body, seen)
                if self._of_messages is not None:
                    key = id(body.turns)
                    if key not in seen:
                        seen[key] = self._of_messages.of_turns(body, body.turns)
                    bits |= seen[key]
            else:
                bits = 0 if body is None else self._bits(body, seen)
        except UnreadableBody:
            return self._everything
        bits &= selection.bits
        met = selection.answers.get(bits)
        return met if met is not None else self._answers.keep(selection.answers, bits, self._met(selection, bits))

    def is_of_frame(self, at: int, positions: Positions) -> bool:
        """Return whether a rule looks at nothing but the frame, beside what `possible` was told by."""
        return self._of_frame[at] and positions is not self._everything

    def holds(self, at: int, facts: Facts, positions: Positions) -> bool:
        """Return whether the matcher of a rule holds, which is at one of these positions, as `possible` told them.

        Raises: UnreadableBody where a test looks at a field that can't be decoded.
        """
        if positions is self._everything:
            return self.rules[at].matcher.holds(facts)
        for check in self._untold[at]:  # noqa: SIM110 as Matcher.holds
            if not check.holds(facts):
                return False
        return True

    def _keep(self, body: Framed, seen: dict[int, int]) -> int:
        """Return the bits of all fields but the messages, and remember them."""
        bits = body.frame.told[self] = self._bits(body, seen, MESSAGES)
        return bits

    def _bits(self, body: Body, seen: dict[int, int], but: str | None = None) -> int:
        """Return the bits of all fields but one, of which only is told that it is not absent."""
        bits, absent, looks = 0, self._absent, self._looks
        for name, value in body.raw_items():
            look = looks.get(name)
            if name == but:
                absent &= look.leaves if look is not None else -1
                continue
            if look is not None:
                bits |= look.bits(body, name, value, seen)
                absent &= look.leaves
            elif self._reads_all:
                body[name]
        return bits | absent

    def _met(self, selection: Selection, bits: int) -> Positions:
        owners = {self._owners[number] for number in _set_bits(bits)}
        met = [at for at in owners if self._required[at] & bits == self._required[at]]
        return tuple(sorted((*selection.free, *met)))


def _set_bits(bits: int) -> Iterable[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _is_of_frame(rule: Rule, untold: Sequence[Check]) -> bool:
    """Return whether a rule's checks that are to be made yet, and its acts, look at nothing but a body's frame."""
    checks = all(check.is_of_body and check.reads.isdisjoint((None, MESSAGES)) for check in untold)
    return checks and rule.mode != "observe" and all(isinstance(repair.act, FrameAct) for repair in rule.repairs)


def _untold(rule: Rule) -> tuple[Check, ...]:
    """Return the checks of a rule that are to be made yet where the index named it."""
    return tuple(check for check in rule.matcher.checks if not check.glob and not check.is_told)


def _statics(rules: Sequence[Rule]) -> list[tuple[tuple[Check, ...], list[int]]]:
    """Return the checks that look at the path, the method and the model only, and the positions of their rules."""
    found: dict[tuple[tuple[str, ...], ...], tuple[tuple[Check, ...], list[int]]] = {}
    for at, rule in enumerate(rules):
        checks = tuple(check for check in rule.matcher.checks if check.glob)
        found.setdefault(tuple(check.glob for check in checks), (checks, []))[1].append(at)
    return list(found.values())
