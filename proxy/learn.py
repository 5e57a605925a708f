"""What refusals taught: rules that a reactive rule's success left behind, applied ahead of the next refusal.

    refused ─► reactive rule repairs ─► answered ─► learned rule ─► applied at once ─┬─ its time runs out ─► forgotten
                                                                                    └─ one request in a hundred goes
                                            without: refused again ─► kept · answered ─► forgotten
A backend that was away may have come back as another version: its rules are tried without at the next request.

They are kept in one YAML file, which is a list of rules that can be pasted into a policy.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from proxy.errors import PolicyFault
from proxy.matching import BadTest
from proxy.plans import Plan, Reaction
from proxy.policy import Rule, compile_rule
from proxy.policy.yaml_text import decode_text, parse_yaml
from proxy.repairs import REPAIRS

MAX_RULES = 256
PROBE_EVERY = 100

_ABOUT = re.compile(
    r"learned (?P<first>\S+) from (?P<rule>\S+) \((?P<status>\w+)\), needed last (?P<last>\S+), "
    r"for (?P<ttl>\d+)s, (?P<hits>\d+) hits"
)


@dataclass(frozen=True, slots=True)
class Lesson:
    """A learned rule and what is known of it. Units: seconds since the epoch, and seconds to live."""

    raw: Mapping[str, Any]
    rule: Rule
    backend: str
    source: str
    status: str
    first_s: float
    last_s: float
    ttl_s: float
    hits: int = 0
    is_suspect: bool = False

    def as_rule(self) -> dict[str, Any]:
        """Return the rule as a policy would have it, its history in `about`."""
        about = (
            f"learned {_time(self.first_s)} from {self.source} ({self.status}), needed last {_time(self.last_s)}, "
            f"for {self.ttl_s:.0f}s, {self.hits} hits"
        )
        return {"id": self.raw["id"], "about": about} | {k: v for k, v in self.raw.items() if k not in ("id", "about")}


class Lessons:
    """All that was learned, by rule id; bounded, the one that was needed longest ago goes first."""

    def __init__(self, clock: Callable[[], float], path: Path | None = None) -> None:
        """Know nothing yet; `clock` gives seconds since the epoch, `path` is where `save` writes."""
        self._clock = clock
        self._path = path
        self._lessons: dict[str, Lesson] = {}
        self._down: set[str] = set()
        self.is_changed = False

    def __len__(self) -> int:
        return len(self._lessons)

    def all(self) -> list[Lesson]:
        """Return the lessons that still hold, the latest last."""
        self._forget_old()
        return sorted(self._lessons.values(), key=lambda lesson: lesson.last_s)

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
        for applied in plan.applied:
            self._hit(applied.rule)
        again = {self._learn(plan, reaction) for reaction in plan.reactions if reaction.rule.learn_for_s is not None}
        for rule_id in plan.skipped - again:
            self.is_changed |= self._lessons.pop(rule_id, None) is not None

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
            self.is_changed = True

    def _learn(self, plan: Plan, reaction: Reaction) -> str:
        raw = lesson_of(plan, reaction)
        rule_id = str(raw["id"])
        now_s = self._clock()
        known = self._lessons.get(rule_id)
        self._lessons[rule_id] = Lesson(
            raw=raw,
            rule=known.rule if known is not None else compile_rule(raw, None, "learned", REPAIRS),
            backend=plan.backend.name,
            source=reaction.rule.id,
            status=str(reaction.status or "stream"),
            first_s=known.first_s if known is not None else now_s,
            last_s=now_s,
            ttl_s=reaction.rule.learn_for_s or 0.0,
            # Past the hit that was a probe, so that the next request is not one too.
            hits=known.hits + 1 if known is not None else 0,
        )
        self.is_changed = True
        while len(self._lessons) > MAX_RULES:
            del self._lessons[min(self._lessons, key=lambda key: self._lessons[key].last_s)]
        return rule_id

    def _forget_old(self) -> None:
        now_s = self._clock()
        old = [key for key, lesson in self._lessons.items() if lesson.last_s + lesson.ttl_s < now_s]
        for key in old:
            del self._lessons[key]
            self.is_changed = True

    def load(self) -> None:
        """Read the file, where there is one.

        Raises: PolicyFault, with every rule that can't be read, OSError.
        """
        if self._path is None or not self._path.exists():
            return
        self._lessons = {lesson.rule.id: lesson for lesson in read_lessons(self._path)}
        self._forget_old()
        self.is_changed = False

    def take_text(self) -> str | None:
        """Return the file's new text, once, where there is something new to keep."""
        if self._path is None or not self.is_changed:
            return None
        self.is_changed = False
        return as_text(self.all())

    def save(self, text: str | None) -> None:
        """Write the file anew, whole or not at all; may run in another thread. Raises: OSError."""
        if self._path is not None and text is not None:
            write_whole(self._path, text)


def _is_due(lesson: Lesson) -> bool:
    return lesson.hits % PROBE_EVERY == PROBE_EVERY - 1


def lesson_of(plan: Plan, reaction: Reaction) -> dict[str, Any]:
    """Return the rule that repairs such a request before it is refused: same backend, model, path and fields."""
    facts = plan.facts
    when: dict[str, Any] = {"backend": facts.backend, "path": facts.path}
    if facts.model is not None:
        when["model"] = _literal(facts.model)
    when["path"] = _literal(facts.path)
    when["body"] = {_quoted(name): {"exists": True} for name in reaction.fields}
    raw: dict[str, Any] = {"when": when, "repair": [dict(entry) for entry in reaction.repairs]}
    if reaction.rule.loses is not None:
        raw["loses"] = reaction.rule.loses
    if reaction.rule.learn_approve:
        raw["mode"] = "observe"
    return {"id": f"learned/{reaction.rule.id.replace('/', '.')}-{_digest(raw)}"} | raw


def _digest(raw: Mapping[str, Any]) -> str:
    """Return what tells the rule from others; a refusal may name the same fields in another order."""
    parts = [yaml.safe_dump(part, sort_keys=True) for part in (raw["when"], *raw["repair"])]
    return hashlib.sha256("".join(sorted(parts)).encode()).hexdigest()[:8]


def _literal(text: str) -> str:
    """Return the glob that matches this text alone."""
    return re.sub(r"([*?[])", r"[\1]", text)


def _quoted(name: str) -> str:
    """Return the path of a top-level field, whatever it is called."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'["{escaped}"]'


def as_text(lessons: Iterable[Lesson]) -> str:
    """Return the lessons as YAML: a list of rules for a policy."""
    rules = [lesson.as_rule() for lesson in lessons]
    head = "# Rules that refusals taught. Each can be pasted into a policy's `rules`; its history stands in `about`.\n"
    return head + (yaml.safe_dump(rules, sort_keys=False, allow_unicode=True, width=120) if rules else "[]\n")


def read_lessons(path: Path) -> list[Lesson]:
    """Return the lessons of a file. Raises: PolicyFault, OSError."""
    document = parse_yaml(decode_text(path.read_bytes(), str(path)), str(path))
    raw_rules = document.value if isinstance(document.value, list) else None
    if raw_rules is None:
        raise PolicyFault([document.fault((), "expected a list of learned rules")])
    lessons, faults = [], []
    for index, raw in enumerate(raw_rules):
        try:
            lessons.append(_lesson(raw, f"{path}:{document.position((index,))[0]}"))
        except BadTest as bad:
            faults += [document.fault((index, *place), message) for place, message in bad.problems]
    if faults:
        raise PolicyFault(faults)
    return lessons


def _lesson(raw: Any, place: str) -> Lesson:
    rule = compile_rule(raw, None, place, REPAIRS)
    told = _ABOUT.fullmatch(rule.about or "")
    backend = (raw.get("when") or {}).get("backend")
    if told is None or not isinstance(backend, str):
        raise BadTest.at("this rule was not learned: its `about` or `when.backend` is not as the proxy writes it")
    return Lesson(
        raw=raw,
        rule=rule,
        backend=backend,
        source=told["rule"],
        status=told["status"],
        first_s=_seconds(told["first"]),
        last_s=_seconds(told["last"]),
        ttl_s=float(told["ttl"]),
        hits=int(told["hits"]),
    )


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one. Raises: OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise BadTest.at(f"{text} is no time") from error
