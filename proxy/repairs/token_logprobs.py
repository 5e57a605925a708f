"""The log probabilities of a choice's tokens, kept in step with a text of which a part is held back or cut off.

Each token has the offset at which its text begins; it goes with the first character of its text. Where the tokens of a
piece do not spell the piece (bytes of a character, a parser in between), all of them go with the piece's beginning.

Shape: chat `{"content": [{"token": …}, …]}`; completions lists side by side, `{"tokens": […], "top_logprobs": […] …}`.
"""

from __future__ import annotations

from typing import Any


def tokens_of(logprobs: Any) -> list[str]:
    """Return the tokens' texts; [] where there are none to be read."""
    if not isinstance(logprobs, dict):
        return []
    content, texts = logprobs.get("content"), logprobs.get("tokens")
    if isinstance(content, list):
        texts = [entry.get("token") if isinstance(entry, dict) else None for entry in content]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return []
    return texts


def offsets_of(tokens: list[str], text: str, start: int) -> list[int]:
    """Return where each token begins, in a piece of text that begins at `start`."""
    if "".join(tokens) != text:
        return [start] * len(tokens)
    offsets = []
    for token in tokens:
        offsets.append(start)
        start += len(token)
    return offsets


def first_tokens(logprobs: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the log probabilities of the first `count` tokens."""
    return _sliced(logprobs, len(tokens_of(logprobs)), slice(count))


def _sliced(logprobs: dict[str, Any], size: int, part: slice) -> dict[str, Any]:
    names = ("content",) if isinstance(logprobs.get("content"), list) else tuple(logprobs)
    return logprobs | {name: logprobs[name][part] for name in names if _is_list_of(logprobs[name], size)}


def _is_list_of(value: Any, size: int) -> bool:
    return isinstance(value, list) and len(value) == size


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    joined = dict(parts[0])
    for part in parts[1:]:
        for name, value in part.items():
            both = isinstance(value, list) and isinstance(joined.get(name), list)
            joined[name] = joined[name] + value if both else value
    return joined


class Trail:
    """The log probabilities of one choice of a stream, as its pieces pass."""

    def __init__(self) -> None:
        self._held: list[tuple[int, dict[str, Any]]] = []

    @property
    def is_holding(self) -> bool:
        """Whether those of some tokens are held back."""
        return bool(self._held)

    def feed(self, logprobs: Any, text: str, start: int) -> bool:
        """Take those of a piece in; False where there are none to be read."""
        tokens = tokens_of(logprobs)
        offsets = offsets_of(tokens, text, start)
        self._held += [
            (offset, _sliced(logprobs, len(tokens), slice(index, index + 1))) for index, offset in enumerate(offsets)
        ]
        return bool(tokens)

    def release(self, end: int | None) -> dict[str, Any] | None:
        """Return those of the tokens that begin before `end`, of all where it is None; None where there are none."""
        due = [part for offset, part in self._held if end is None or offset < end]
        self._held = [pair for pair in self._held if end is not None and pair[0] >= end]
        return _joined(due) if due else None
