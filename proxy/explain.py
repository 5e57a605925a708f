"""What the policy would do with a request, told rule by rule; pure, so that the command and the page say the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from proxy import headers
from proxy.engine import Plan, Request, Step, plan
from proxy.errors import ProxyError
from proxy.fields import ABSENT
from proxy.policy import Policy


def explain(request: Request, policy: Policy) -> dict[str, Any]:
    """Return what would happen, as JSON values.

    Shape: {"backend", "rules": [{"id", "fired", "why", …}], "before", "after": [branch body], "answer", "told",
    "refused"}.
    """
    trace: list[Step] = []
    try:
        made = plan(request, policy, trace)
    except ProxyError as error:
        return _nowhere(request, error)
    return {
        "backend": made.backend.name,
        "rules": [_told(step) for step in trace],
        "before": _readable(request.body),
        "after": _after(request, made),
        "untouched": made.is_untouched,
        "answer": _answer(made),
        "told": _header(made),
        "refused": made.refusal.body()["error"] | {"status": made.refusal.status} if made.refusal else None,
    }


def _after(request: Request, made: Plan) -> list[Any]:
    if made.refusal is not None:
        return []
    return [_readable(body) for body in map(bytes, made.bodies or (request.body or b"",))]


def _nowhere(request: Request, error: ProxyError) -> dict[str, Any]:
    return {
        "backend": None,
        "rules": [],
        "before": _readable(request.body),
        "after": [],
        "untouched": False,
        "answer": f"the proxy answers {error.status} itself",
        "told": None,
        "refused": error.body()["error"] | {"status": error.status},
    }


def _told(step: Step) -> dict[str, Any]:
    told: dict[str, Any] = {"id": step.rule.id, "fired": step.applied is not None and step.rule.mode != "observe"}
    if step.applied is not None:
        told |= {"repairs": list(step.applied.repairs), "loses": step.applied.loses}
    if step.miss is not None:
        label, value = step.miss
        told |= {"failed": label, "met": _shown(value)}
    if step.note:
        told["why"] = step.note
    return told


def _shown(value: Any) -> Any:
    """Return a value that a matcher met, short enough for a line."""
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list) and any(item is ABSENT for item in value):
        value = ["absent" if item is ABSENT else item for item in value]
    if value is ABSENT:
        return "absent"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= 80 else f"{text[:77]}…"


def _readable(body: bytes | None) -> Any:
    try:
        value = msgspec.json.decode(body) if body else None
        json.dumps(value)
    except msgspec.DecodeError:
        return None
    except RecursionError:
        return "nested too deeply to be shown"
    return value


def _answer(made: Plan) -> str:
    restoring = made.restore
    if made.refusal is not None:
        return f"the proxy answers {made.refusal.status} itself"
    if restoring is None:
        return "the backend's answer is relayed as it comes"
    count = len(made.bodies)
    branches = "one upstream request" if count == 1 else f"{count} upstream requests"
    shape = "an event stream" if restoring.stream else "one JSON answer"
    return f"{branches}, restored to {shape}" + (f" of {restoring.total} choices" if restoring.total else "")


def _header(made: Plan) -> str | None:
    if not made.applied:
        return None
    return headers.repairs(tuple((applied.rule, applied.loses, applied.warning) for applied in made.applied))


def as_text(told: dict[str, Any]) -> str:
    """Return an explanation for people: the rules, the body as a diff, what the client is told."""
    lines = [f"backend: {told['backend'] or 'none'}", ""]
    width = max((len(rule["id"]) for rule in told["rules"]), default=0)
    lines += [_line(rule, width) for rule in told["rules"]]
    if told["refused"]:
        lines += ["", f"refused: {told['refused']['status']} {told['refused']['message']}"]
    for index, after in enumerate(told["after"]):
        lines += ["", *_diff(told["before"], after, f"branch {index}" if len(told["after"]) > 1 else "upstream")]
    lines += ["", f"answer: {told['answer']}"]
    if told["told"]:
        lines.append(f"Mendproxy-Repairs: {told['told']}")
    return "\n".join(lines) + "\n"


def _line(rule: dict[str, Any], width: int) -> str:
    name = rule["id"].ljust(width)
    if "repairs" in rule:
        mark = "fired " if rule["fired"] else "would "
        return f"{mark} {name}  {', '.join(rule['repairs'])} (loses: {rule['loses'] or 'nothing'})"
    if "failed" in rule:
        return f"passed {name}  {rule['failed']}: met {json.dumps(rule['met'], ensure_ascii=False)}"
    return f"passed {name}  {rule.get('why', '')}"


def _diff(before: Any, after: Any, name: str) -> list[str]:
    # The process that serves imports this, and seldom explains.
    import difflib

    old, new = (json.dumps(value, indent=2, ensure_ascii=False).splitlines() for value in (before, after))
    return list(difflib.unified_diff(old, new, "client", name, lineterm="", n=2)) or [f"{name}: as the client sent it"]
