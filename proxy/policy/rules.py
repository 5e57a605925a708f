"""One rule: raw YAML value → compiled, with every problem of all its parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from proxy.matching import BadTest, Problem, compile_matcher, compile_regex
from proxy.policy import schema
from proxy.policy.model import OnError, Rule
from proxy.policy.repair import compile_repairs
from proxy.policy.validate import look_up, validated, with_typed_variables
from proxy.repairs.card import Card

_FLAGS: Final = re.IGNORECASE | re.MULTILINE | re.DOTALL

T = TypeVar("T")


def compile_rule(raw: Any, preset: str | None, place: str, repairs: Mapping[str, Card]) -> Rule:
    """Return the rule, under its full id where it is a preset's.

    Raises: BadTest with every problem of the rule, its matcher and its repairs.
    """
    problems: list[Problem] = []
    model = _part(lambda: validated(schema.Rule, raw), (), problems)
    matcher = _part(lambda: with_typed_variables(compile_matcher, look_up(raw, ("when",))), ("when",), problems)
    acts = None
    if isinstance(raw, dict) and "repair" in raw:
        captures = _captures(raw)
        acts = _part(lambda: compile_repairs(raw["repair"], repairs, captures), ("repair",), problems)
    if isinstance(raw, dict) and "learn" in raw and "on_error" not in raw:
        problems.append((("learn",), "only a rule with `on_error` has something to learn"))
    if preset and model and "/" in model.id:
        problems.append((("id",), "a preset's own rules are named without the preset"))
    if model is None or matcher is None or acts is None or problems:
        raise BadTest(problems)
    return Rule(
        id=f"{preset}/{model.id}" if preset else model.id,
        about=model.about,
        matcher=matcher,
        on_error=_on_error(model.on_error) if model.on_error else None,
        repairs=acts,
        loses=model.loses,
        mode=model.mode,
        learn_for_s=model.learn.for_ if model.learn else None,
        learn_approve=model.learn is not None and model.learn.approve,
        place=place,
    )


def _part(compile_part: Callable[[], T], place: tuple[str, ...], problems: list[Problem]) -> T | None:
    try:
        return compile_part()
    except BadTest as bad:
        problems += bad.under(*place)
        return None


def _captures(raw: dict[str, Any]) -> frozenset[str] | None:
    """Return the names that the rule's regexes capture; None for a rule that is not reactive, or has a bad regex."""
    if "on_error" not in raw:
        return None
    names: set[str] = set()
    for key in ("message", "each"):
        text = look_up(raw, ("on_error", key))
        try:
            names |= set(compile_regex(text).groupindex) if isinstance(text, str) else set()
        except BadTest:
            return None  # told where the schema meets it; which names it would give nobody knows
    return frozenset(names)


def _on_error(raw: schema.OnError) -> OnError:
    return OnError(
        status=None if raw.status is None else frozenset([raw.status] if isinstance(raw.status, int) else raw.status),
        message=None if raw.message is None else compile_regex(raw.message, _FLAGS),
        each=None if raw.each is None else compile_regex(raw.each, _FLAGS),
        code=None if raw.code is None else str(raw.code),
        param=raw.param,
        stream=frozenset([raw.stream] if isinstance(raw.stream, str) else raw.stream or ()),
        fewer_choices=raw.choices == "fewer",
    )
