"""Usage arithmetic: what n branches cost together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

UsageMode = Literal["once", "sum"]


def join_usage(usages: Sequence[Mapping[str, Any] | None], mode: UsageMode) -> dict[str, Any] | None:
    """Return the usage of all branches together, None where none reported any.

    Shape: `once` takes what concerns the prompt from the first that reported it, and adds up the rest.
    """
    reported = [dict(usage) for usage in usages if isinstance(usage, Mapping) and usage]
    if len(reported) < 2:
        return reported[0] if reported else None
    total = _sum(reported, mode)
    parts = [total.get("prompt_tokens", total.get("input_tokens"))]
    parts.append(total.get("completion_tokens", total.get("output_tokens")))
    if mode == "once" and "total_tokens" in total and all(map(_is_number, parts)):
        total["total_tokens"] = sum(parts)
    return total


def _sum(usages: Sequence[Mapping[str, Any]], mode: UsageMode) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for key in dict.fromkeys(key for usage in usages for key in usage):
        values = [usage[key] for usage in usages if key in usage]
        if mode == "once" and key.startswith(("prompt", "cache", "input")):
            total[key] = _first(values)
        else:
            total[key] = _sum_values([value for value in values if value is not None], mode)
    return total


def _first(values: Sequence[Any]) -> Any:
    """Return the first value that is told; of objects each field's."""
    told = [value for value in values if value is not None]
    if told and all(isinstance(value, dict) for value in told):
        names = dict.fromkeys(name for value in told for name in value)
        return {name: _first([value[name] for value in told if name in value]) for name in names}
    return told[0] if told else None


def _sum_values(values: Sequence[Any], mode: UsageMode) -> Any:
    if values and all(map(_is_number, values)):
        return sum(values)
    if values and all(isinstance(value, dict) for value in values):
        return _sum(values, mode)
    return values[0] if values else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
