"""Tool calls and their results said as plain text, for a model that knows no tools.

{tool_calls: [{function: {name: f, arguments: "{}"}}]} → [Calls f with {}]     {role: tool, …} → [Result of f] …
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proxy.repairs.messages import join, json_text, role_of
from proxy.repairs.parts import Loss
from proxy.repairs.tool_calls import calls_in, is_call_item, is_result_item, pair


def as_text(items: list[Any], *, is_chat: bool) -> tuple[list[Any], list[Loss]]:
    """Return the messages (or items) without calls and results, and what that loses."""
    pairing = pair(items, is_chat=is_chat, makes_ids=True)
    names = {index: call.name for index, call in pairing.call_of.items()}
    losses: list[Loss] = []
    said = [_said(item, names.get(index), losses) for index, item in enumerate(items)]
    return said, losses


def _said(item: Any, name: str | None, losses: list[Loss]) -> Any:
    if role_of(item) in ("tool", "function") or is_result_item(item):
        losses.append(("tool result", "said as text"))
        return _result(item, name)
    calls = list(_calls(item))
    if not calls:
        return item
    losses += [("tool call", "said as text")] * len(calls)
    text = {"role": "assistant", "content": "\n".join(map(_call, calls))}
    if is_call_item(item):
        return text
    rest = {key: value for key, value in item.items() if key not in ("tool_calls", "function_call")}
    return join([rest, text], "\n")[0]


def _calls(item: Any) -> Iterator[Any]:
    if is_call_item(item):
        yield item
        return
    yield from (call.get("function") for call in calls_in(item) if isinstance(call, dict))
    if role_of(item) == "assistant" and isinstance(item.get("function_call"), dict):
        yield item["function_call"]


def _call(function: Any) -> str:
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments", function.get("input"))
    return f"[Calls {_named(function)} with {_text(arguments) or '{}'}]"


def _result(item: dict[str, Any], name: str | None) -> dict[str, Any]:
    content = item.get("output") if is_result_item(item) else item.get("content")
    head = f"[Result of {name or _named(item)}]"
    if isinstance(content, list):
        kind = "input_text" if is_result_item(item) else "text"
        return {"role": "user", "content": [{"type": kind, "text": head}, *content]}
    return {"role": "user", "content": f"{head} {_text(content)}".rstrip()}


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json_text(value) or "(nested too deep to be told)"


def _named(item: dict[str, Any]) -> str:
    name = item.get("name")
    return name if isinstance(name, str) and name else "a tool"
