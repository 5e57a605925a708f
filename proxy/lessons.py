"""One lesson: a rule that a refusal taught, with its history; as a value, and as YAML that can be pasted into a policy.

- id: learned/unexpected-fields-1f0c63b2
  about: learned 2026-11-30T12:00:00.000Z from unexpected-fields (422), needed last 2026-…, for 3600s, 12 hits
  when: {backend: main, path: /v1/chat/completions, model: tiny, body: {top_k: {exists: true}}}
  repair: [drop: [top_k]]
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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

_ABOUT = re.compile(
    r"learned (?P<first>\S+) from (?P<rule>\S+) \((?P<status>\w+)\), needed last (?P<last>\S+), "
    r"for (?P<ttl>\d+)s, (?P<hits>\d+) hits"
)
_HEAD = "# Rules that refusals taught. Each can be pasted into a policy's `rules`; its history stands in `about`.\n"


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
            f"learned {time_text(self.first_s)} from {self.source} ({self.status}), "
            f"needed last {time_text(self.last_s)}, for {self.ttl_s:.0f}s, {self.hits} hits"
        )
        return {"id": self.raw["id"], "about": about} | _bare(self.raw)


def _bare(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in ("id", "about")}


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
    """Return the lessons as YAML: a list of rules for a policy, the one that was needed last at the end."""
    rules = [lesson.as_rule() for lesson in sorted(lessons, key=order)]
    return _HEAD + (_yaml(rules) if rules else "[]\n")


def rule_text(lesson: Lesson) -> str:
    """Return one lesson as YAML that can be pasted into a policy's `rules`."""
    return _yaml([lesson.as_rule()])


def _yaml(rules: list[dict[str, Any]]) -> str:
    text: str = yaml.safe_dump(rules, sort_keys=False, allow_unicode=True, width=120)
    return text


def order(lesson: Lesson) -> tuple[float, str]:
    """Return by what lessons are ordered: when they were needed last, in every process alike."""
    return lesson.last_s, lesson.rule.id


def read_lessons(path: Path, known: Mapping[str, Lesson] | None = None) -> list[Lesson]:
    """Return the lessons of a file; the rules of those that are known are not compiled anew.

    Raises: PolicyFault with every rule that can't be read, OSError.
    """
    document = parse_yaml(decode_text(path.read_bytes(), str(path)), str(path))
    raw_rules = document.value if isinstance(document.value, list) else None
    if raw_rules is None:
        raise PolicyFault([document.fault((), "expected a list of learned rules")])
    lessons, faults = [], []
    for index, raw in enumerate(raw_rules):
        try:
            lessons.append(_lesson(raw, f"{path}:{document.position((index,))[0]}", known or {}))
        except BadTest as bad:
            faults += [document.fault((index, *place), message) for place, message in bad.problems]
    if faults:
        raise PolicyFault(faults)
    return lessons


def _lesson(raw: Any, place: str, known: Mapping[str, Lesson]) -> Lesson:
    same = known.get(str(raw.get("id"))) if isinstance(raw, dict) else None
    is_same = same is not None and _bare(same.raw) == _bare(raw)
    rule = same.rule if same is not None and is_same else compile_rule(raw, None, place, REPAIRS)
    about = raw.get("about")
    told = _ABOUT.fullmatch(about if isinstance(about, str) else "")
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


def time_text(seconds: float) -> str:
    """Return seconds since the epoch as ISO 8601, to the millisecond: who needed a rule last is told by it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).astimezone(UTC).timestamp()
    except (ValueError, OverflowError) as error:
        raise BadTest.at(f"{text} is no time") from error
