"""Parts of a message's content: of what kind they are, the text that they hold, what a client is told of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

TEXT_FIELDS: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""The field that holds the text, by the part's type. Sources: OpenAI's chat and Responses schemas, Anthropic's."""

_PLAIN_TEXT: Final = ("string", "text", "input_text", "output_text")
_NOUNS: Final = ("image", "audio", "video")
_FILES: Final = ("file", "document")

Loss = tuple[str, str]
"""What was lost of one thing. Shape: ("image part", "dropped")"""


def kind_of(part: Any) -> str | None:
    """Return the part's type, `string` for a bare one; without a type that of the text or media it holds."""
    if isinstance(part, str):
        return "string"
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    if kind is None:
        return next((name for name in ("text", "image_url", "input_audio") if name in part), None)
    return kind if isinstance(kind, str) else None


def text_of(part: Any) -> str | None:
    """Return the text that a part holds; None of what is no text, or misses it."""
    if isinstance(part, str):
        return part
    text = part.get(TEXT_FIELDS.get(kind_of(part) or "", "")) if isinstance(part, dict) else None
    return text if isinstance(text, str) else None


def is_plain_text(kind: str | None) -> bool:
    """Return whether parts of the kind are text and nothing more: no refusal, no thinking."""
    return kind in _PLAIN_TEXT


def noun_of(kind: str | None) -> str:
    """Return the word for parts of the kind, which is never the client's own."""
    if kind is None:
        return "other"
    if kind in TEXT_FIELDS or kind == "string":
        return {"refusal": "refusal", "thinking": "thinking"}.get(kind, "text")
    words = (noun for noun in _NOUNS if noun in kind)
    return next(words, "file" if any(word in kind for word in _FILES) else "other")


def placeholder_of(kind: str | None) -> str:
    """Return the text that stands where a part of the kind stood. Shape: image_url → "[image]"."""
    noun = noun_of(kind)
    return "[content]" if noun == "other" else f"[{noun}]"


def counted(losses: Iterable[Loss]) -> str | None:
    """Return the sentence of what was lost. Shape: 2 × ("image part", "dropped") → "2 image parts dropped"."""
    counts = Counter(losses)
    sentences = [f"{count} {noun}{'s' if count > 1 else ''} {deed}" for (noun, deed), count in counts.items()]
    return ", ".join(sentences) or None


def as_text_part(kind: str, part: Any) -> dict[str, Any] | None:
    """Return the part as a text part of the type `kind`; None where it holds no text."""
    text = text_of(part)
    if text is None:
        return None
    if isinstance(part, dict) and part.get("text") == text and part.get("type") in (None, kind):
        return part | {"type": kind}
    marks = {"cache_control": part["cache_control"]} if isinstance(part, dict) and "cache_control" in part else {}
    return {"type": kind, "text": text, **marks}
