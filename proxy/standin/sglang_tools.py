"""The tools and tool calls that sglang refuses once their types are right.

Source: recorded refusals u01 to u06, m10 to m12 of sglang 0.5.23; sglang.md §4.5.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from proxy.standin.sglang_messages import Message
from proxy.standin.sglang_schema import Chat


def tools_fault(ask: Chat) -> Iterator[str | None]:
    """Yield what is wrong with the tools and the choice among them."""
    names = [tool.function.name for tool in ask.tools or []]
    if not names and ask.tool_choice == "required":
        yield "Tools cannot be empty if tool choice is set to required."
    if not names and ask.named_tool is not None:
        yield "Tools cannot be empty if tool choice is set to a specific tool."
    if ask.named_tool is not None and ask.named_tool not in names:
        yield f"Tool '{ask.named_tool}' not found in tools list."
    if len(set(names)) < len(names):
        yield "Tool names must be unique across request and message tools."
    for index, tool in enumerate(ask.tools or []):
        yield _bad_parameters(index, tool.function.parameters or {})


_JSON_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")
_NO_JSON_TYPE: Final = (
    "Tool {index} function has invalid 'parameters' schema: {type!r} is not valid under any of the given schemas\n\n"
    "Failed validating 'anyOf' in metaschema['allOf'][3]['properties']['type']:\n"
    "    {{'anyOf': [{{'$ref': '#/$defs/simpleTypes'}},\n"
    "               {{'type': 'array',\n"
    "                'items': {{'$ref': '#/$defs/simpleTypes'}},\n"
    "                'minItems': 1,\n"
    "                'uniqueItems': True}}]}}\n\n"
    "On schema['type']:\n"
    "    {type!r}"
)


def _bad_parameters(index: int, schema: dict[str, Any]) -> str | None:
    type_ = schema.get("type", "object")
    types = type_ if isinstance(type_, list) else [type_]
    if all(name in _JSON_TYPES for name in types):
        return None
    return _NO_JSON_TYPE.format(index=index, type=type_)


def arguments_fault(message: Message) -> str | None:
    """Return what is wrong with the arguments of the calls in a message."""
    for call in getattr(message, "tool_calls", None) or []:
        arguments = call.function.arguments
        try:
            value = json.loads(arguments) if isinstance(arguments, str) else arguments or {}
        except ValueError:
            return "Assistant tool call function.arguments must be valid JSON."
        if not isinstance(value, dict):
            return "Assistant tool call function.arguments must be a JSON object."
    return None
