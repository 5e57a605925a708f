"""What refusals taught: rules that a reactive rule's success left behind, applied ahead of the next refusal.

    refused ─► reactive rule repairs ─► answered ─► learned rule ─► applied at once ─┬─ its time runs out ─► forgotten
                                                                                    └─ one request in a hundred goes
                                            without: refused again ─► kept · answered ─► forgotten
A backend that was away may have come back as another version: its rules are tried without at the next request.

What one process learns or forgets is gathered as `Changes`, which `merge` applies to what all of them know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from proxy.lessons import Lesson, lesson_of, order
from proxy.plans import Plan, Reaction
from proxy.policy import Rule, compile_rule
from proxy.repairs import REPAIRS

MAX_RULES = 256
PROBE_EVERY = 100


@dataclass(slots=True)
class Changes:
    """What changed here, by rule id: forgotten first, when, then learned, then hit, how often."""

    forgotten: dict[str, float] = field(default_factory=dict)
    learned: dict[str, Lesson] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not (self.forgotten or self.learned or self.hits)

    def forget(self, rule_id: str, forgotten_s: float) -> None:
        """Note that a rule is not needed since then."""
        self.learned.pop(rule_id, None)
        self.hits.pop(rule_id, None)
        self.forgotten[rule_id] = forgotten_s
        if len(self.forgotten) > 4 * MAX_RULES:  # where the file can't be written, for days
            del self.forgotten[next(iter(self.forgotten))]

    def then(self, later: Changes) -> Changes:
        """Return these changes and later ones as one."""
        both = Changes(dict(self.forgotten), dict(self.learned), dict(self.hits))
        for rule_id, forgotten_s in later.forgotten.items():
            both.forget(rule_id, forgotten_s)
        both.learned |= later.learned
        for rule_id, hits in later.hits.items():
            both.hits[rule_id] = both.hits.get(rule_id, 0) + hits
        return both


def merge(kept: Mapping[str, Lesson], changes: Changes, now_s: float) -> dict[str, Lesson]:
    """Return what is kept with one process's changes: what was needed after it was forgotten stays, old ones go."""
    lessons = {
        rule_id: lesson for rule_id, lesson in kept.items() if lesson.last_s > changes.forgotten.get(rule_id, 0.0)
    }
    for rule_id, lesson in changes.learned.items():
        known = lessons.get(rule_id)
        lessons[rule_id] = replace(lesson, hits=0) if known is None else _needed_again(known, lesson)
    for rule_id, hits in changes.hits.items():
        if rule_id in lessons:
            lessons[rule_id] = replace(lessons[rule_id], hits=lessons[rule_id].hits + hits)
    fresh = [lesson for lesson in lessons.values() if not is_over(lesson, now_s)]
    return {lesson.rule.id: lesson for lesson in sorted(fresh, key=order)[-MAX_RULES:]}


def _needed_again(known: Lesson, lesson: Lesson) -> Lesson:
    """Return a known lesson that was learned once more. Its rule stays: an operator may have approved it by hand."""
    newest = max(known, lesson, key=order)
    return replace(
        known,
        source=newest.source,
        status=newest.status,
        ttl_s=newest.ttl_s,
        last_s=newest.last_s,
        first_s=min(known.first_s, lesson.first_s),
    )


def is_over(lesson: Lesson, now_s: float) -> bool:
    """Return whether a lesson's time has run out."""
    return lesson.last_s + lesson.ttl_s < now_s


class Lessons:
    """All that was learned, by rule id; bounded, the one that was needed longest ago goes first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Know nothing yet; `clock` gives seconds since the epoch."""
        self._clock = clock
        self._lessons: dict[str, Lesson] = {}
        self._changes = Changes()
        self._down: set[str] = set()

    def __len__(self) -> int:
        return len(self._lessons)

    def all(self) -> list[Lesson]:
        """Return the lessons that still hold, the latest last."""
        self._forget_old()
        return sorted(self._lessons.values(), key=order)

    def rules(self, backend: str) -> tuple[tuple[Rule, ...], frozenset[str]]:
        """Return the rules learned of a backend, and the ids of those to leave out this time, to see what happens."""
        if not self._lessons:
            return (), frozenset()
        self._forget_old()
        mine = [lesson for lesson in self._lessons.values() if lesson.backend == backend]
        left_out = frozenset(lesson.rule.id for lesson in mine if lesson.is_suspect or _is_due(lesson))
        return tuple(lesson.rule for lesson in mine), left_out

    def answered(self, plan: Plan) -> None:
        """Note that a plan was answered well: what its reactions did is learned, what it did without is forgotten."""
        if not (self._lessons or plan.reactions):
            return
        for applied in plan.applied:
            self._hit(applied.rule)
        again = {self._learn(plan, reaction) for reaction in plan.reactions if reaction.rule.learn_for_s is not None}
        for rule_id in plan.skipped - again:
            if self._lessons.pop(rule_id, None) is not None:
                self._changes.forget(rule_id, self._clock())

    def note(self, backend: str, *, is_up: bool) -> None:
        """Note whether a backend was reached: one that was away may be another when it is back."""
        if not is_up:
            self._down.add(backend)
        elif backend in self._down:
            self._down.discard(backend)
            self._lessons = {
                key: replace(lesson, is_suspect=True) if lesson.backend == backend else lesson
                for key, lesson in self._lessons.items()
            }

    def _hit(self, rule_id: str) -> None:
        lesson = self._lessons.get(rule_id)
        if lesson is not None:
            self._lessons[rule_id] = replace(lesson, hits=lesson.hits + 1)
            self._changes.hits[rule_id] = self._changes.hits.get(rule_id, 0) + 1

    def _learn(self, plan: Plan, reaction: Reaction) -> str:
        raw = lesson_of(plan, reaction)
        rule_id = str(raw["id"])
        now_s = round(self._clock(), 3)  # as the file has it
        known = self._lessons.get(rule_id)
        self._lessons[rule_id] = self._changes.learned[rule_id] = Lesson(
            raw=known.raw if known is not None else raw,
            rule=known.rule if known is not None else compile_rule(raw, None, "learned", REPAIRS),
            backend=plan.backend.name,
            source=reaction.rule.id,
            status=str(reaction.status or "stream"),
            first_s=known.first_s if known is not None else now_s,
            last_s=now_s,
            ttl_s=reaction.rule.learn_for_s or 0.0,
            hits=known.hits if known is not None else 0,
        )
        if known is not None:
            # Past the hit that was a probe, so that the next request is not one too.
            self._hit(rule_id)
        self._bound()
        return rule_id

    def _bound(self) -> None:
        while len(self._lessons) > MAX_RULES:
            oldest = min(self._lessons, key=lambda key: order(self._lessons[key]))
            del self._lessons[oldest]
            self._changes.learned.pop(oldest, None)

    def _forget_old(self) -> None:
        now_s = self._clock()
        for old in [lesson for lesson in self._lessons.values() if is_over(lesson, now_s)]:
            del self._lessons[old.rule.id]
            # Another process may have needed it since, which holds.
            self._changes.forget(old.rule.id, old.last_s)

    @property
    def has_news(self) -> bool:
        """Whether other processes should soon know what changed: more than that rules were hit."""
        return bool(self._changes.learned or self._changes.forgotten)

    def take(self) -> Changes:
        """Return what changed since the last time, to be given to `merge` elsewhere and the outcome to `adopt`."""
        self._forget_old()
        taken, self._changes = self._changes, Changes()
        return taken

    def give_back(self, changes: Changes) -> None:
        """Keep changes that were taken and could not be merged."""
        self._changes = changes.then(self._changes)

    def adopt(self, kept: Mapping[str, Lesson]) -> bool:
        """Know what all processes know, and what changed here since `take`; return whether others changed the rules."""
        known = self._lessons.keys()
        suspects = {key: lesson.last_s for key, lesson in self._lessons.items() if lesson.is_suspect}
        self._lessons = {
            key: replace(lesson, is_suspect=suspects.get(key) == lesson.last_s)
            for key, lesson in merge(kept, self._changes, self._clock()).items()
        }
        return self._lessons.keys() != known


def _is_due(lesson: Lesson) -> bool:
    return lesson.hits % PROBE_EVERY == PROBE_EVERY - 1
