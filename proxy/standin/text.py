"""What a stand-in says: deterministic text, and the pieces that count as its tokens.

    prompt, variant → an endless or finite row of pieces

Variant 0 is the plain answer; the others open with another word, so that n choices differ. The prompts and answers
are those of the tiny model that the transcripts were recorded with.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Final

ENDLESS: Final = "run forever"
_ANSWERS: Final = {"hello": "Hello! I am a tiny test model.", "ping": "pong", "say ok": "ok"}
_OPENINGS: Final = ("", "Well", "So", "Right", "Indeed", "Yes", "Sure", "Okay", "Again", "Listen", "True", "Look")
_PIECE = re.compile(r" ?\w+| ?[^\w\s]|\s+")
_COUNT = re.compile(r"count to (\d{1,6})")
_PLACE = re.compile(r"\bin ([A-Z]\w+)")
_ECHO_LENGTH: Final = 200
_SCHEMA_DEPTH: Final = 16


def pieces(text: str) -> list[str]:
    """Return the text cut into its tokens; joined they are the text again."""
    return _PIECE.findall(text)


def answer(prompt: str, variant: int) -> Iterator[str]:
    """Yield the answer to a prompt, piece by piece; `run forever` never ends."""
    opening, plain = _opening(variant), _normal(prompt)
    yield from pieces(opening)
    space = " " if opening else ""
    if plain == ENDLESS:
        yield space + "tick"
        yield from itertools.repeat(" tick")
    elif count := _COUNT.fullmatch(plain):
        yield space + "1"
        yield from (f" {number}" for number in range(2, int(count[1]) + 1))
    else:
        yield from pieces(space + _sentence(prompt, plain))


def is_endless(prompt: str) -> bool:
    """Return whether the answer to the prompt has no end of its own."""
    return _normal(prompt) == ENDLESS


def reasoning(prompt: str) -> list[str]:
    """Return the pieces of what is thought before the answer."""
    return pieces(f"The user wrote {len(prompt)} characters. I answer what I always answer.")


def tool_call(tools: list[dict[str, Any]], name: str | None, prompt: str) -> tuple[str, str] | None:
    """Return (function, arguments as JSON text); None where no tool is called.

    Without a `name` only a question about the weather calls one, and only a tool that is about it.
    """
    functions = [tool["function"] for tool in tools]
    if name is None:
        functions = [function for function in functions if "weather" in function["name"]]
        if not functions or "weather" not in prompt.lower():
            return None
    else:
        functions = [function for function in functions if function["name"] == name]
    place = _PLACE.search(prompt)
    example = instance(functions[0].get("parameters") or {}, place[1] if place else "Paris")
    return functions[0]["name"], json.dumps(example)


def instance(schema: Any, word: str, root: Any = None, depth: int = 0) -> Any:
    """Return a small value of the schema; `word` stands where a string is asked for."""
    root = schema if root is None else root
    if not isinstance(schema, dict) or depth > _SCHEMA_DEPTH:
        return {} if depth == 0 else None
    if "$ref" in schema:
        return instance(_resolve(root, str(schema["$ref"])), word, root, depth + 1)
    for key in ("const", "enum", "anyOf", "oneOf", "allOf"):
        if key in schema:
            first = schema[key] if key == "const" else schema[key][0]
            return first if key in ("const", "enum") else instance(first, word, root, depth + 1)
    kind = schema.get("type", "object" if depth == 0 or "properties" in schema else "string")
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: instance(inner, word, root, depth + 1) for name, inner in properties.items()}
    if kind == "array":
        return [instance(schema["items"], word, root, depth + 1)] if "items" in schema else []
    return {"string": word, "integer": 1, "number": 1.5, "boolean": True}.get(kind if isinstance(kind, str) else "")


def _resolve(root: Any, reference: str) -> Any:
    for key in reference.removeprefix("#").split("/")[1:]:
        root = root.get(key, {}) if isinstance(root, dict) else {}
    return root


def _normal(prompt: str) -> str:
    return prompt.strip().lower().rstrip(".!?")


def _sentence(prompt: str, plain: str) -> str:
    if plain in _ANSWERS:
        return _ANSWERS[plain]
    if "weather" in plain:
        return "I have no tools, so I do not know."
    return f"I am a stand-in without a model, I can only say that you wrote: {prompt[:_ECHO_LENGTH]}"


def _opening(variant: int) -> str:
    round_, which = divmod(variant, len(_OPENINGS))
    word = _OPENINGS[which] or ("Hm" if round_ else "")
    return f"{word}{round_ or ''}," if word else ""
