"""The grammars that sglang's scheduler can't compile. The message has the time of day in it.

Source: recorded refusals g06 to g17, p37, p38 of sglang 0.5.23.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, Final

from proxy.standin.sglang_schema import Chat, Completion, ResponseFormat

_JSON_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")


def grammar_fault(ask: Chat | Completion) -> str | None:
    """Return why the request's grammar doesn't compile; None where it does or there is none."""
    if (fault := _regex_fault(ask.regex)) is not None:
        return _told("regex", "regex_converter.cc:83", f"Regex parsing error at position {fault}")
    if (fault := _ebnf_fault(ask.ebnf)) is not None:
        return _told("ebnf", "grammar_parser.cc:820", f"EBNF parser error at {fault}")
    if (type_ := next(_unknown_types(_schema(ask)), None)) is not None:
        return _told("json", "json_schema_converter.cc:4175", f'Unsupported type "{type_}"')
    return None


def _told(kind: str, place: str, fault: str) -> str:
    return f"Failed to compile {kind} grammar: [{time.strftime('%H:%M:%S')}] /project/cpp/{place}: {fault}\n"


def _regex_fault(pattern: str | None) -> str | None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        if "unterminated subpattern" in error.msg or "missing )" in error.msg:
            return f"{len(pattern or '') + 1}: The parenthesis is not closed."
        return f"{(error.pos or 0) + 1}: {error.msg.capitalize()}."
    return None


def _ebnf_fault(grammar: str | None) -> str | None:
    if grammar is None or grammar.count("(") <= grammar.count(")"):
        return None
    lines = grammar.split("\n")
    return f"line {len(lines)}, column {len(lines[-1]) + 1}: Expect element, but got "


def _schema(ask: Chat | Completion) -> Any:
    format_ = ask.response_format
    if isinstance(format_, ResponseFormat) and format_.json_schema is not None:
        return format_.json_schema.schema_
    return None


def _unknown_types(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str) and schema["type"] not in _JSON_TYPES:
            yield schema["type"]
        for name in ("properties", "$defs"):
            for inner in (schema.get(name) or {}).values() if isinstance(schema.get(name), dict) else ():
                yield from _unknown_types(inner)
        yield from _unknown_types(schema.get("items"))
