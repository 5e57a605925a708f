"""Messages that are turns: each a role and a content and nothing else, told without making the contents.

[{"role": "user", "content": "Hi"}]  →  [Turn("user", "Hi" as its bytes)]
"""

from __future__ import annotations

from typing import Final

import msgspec

MESSAGES: Final = "messages"


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A message, its content as the bytes that it came with. A struct, since the decoder makes them."""

    role: str
    content: msgspec.Raw


TURNS: Final = msgspec.json.Decoder(list[Turn])


def read_turns(raw: msgspec.Raw | memoryview) -> list[Turn] | None:
    """Return the turns, or None where the value is something else, or no JSON."""
    try:
        return TURNS.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
