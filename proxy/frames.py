"""A body in two parts: its messages, which are hardly ever the same again, and the frame around them, which often is.

    {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "n": 1}
      frame     {"model": "m", "messages": 0, "n": 1}     parsed once, and remembered by its bytes
      messages  [{"role": "user", "content": "Hi"}]       read as turns, in one pass over their bytes

A whole value in another's place leaves all else in a JSON text what it was, so both parts together tell what the whole
would. A body that has other messages than turns, or a name twice, or much besides, is parsed as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

import msgspec

from proxy.body import Body, Pieces, UnreadableBody
from proxy.turns import MESSAGES, Turn, read_turns

_NAME: Final = b'"messages"'
_END: Final = b'"}]'  # of messages whose last one ends with a text
_LONGEST_NAME: Final = len(_NAME) + len(": [")
_LONGEST_FRAME: Final = 512
_MOST_FRAMES: Final = 512
_MOST_EDITED: Final = 8
_FLAGS: Final = frozenset({bool, type(None)})
_LONG_BYTES: Final = 4096  # to parse a body as long as this takes longer than to look at a new frame

Around = tuple[bytes, bytes]
"""What stands before a body's messages, and after them."""


class Outcome(msgspec.Struct, frozen=True):
    """What rules that look at nothing but the frame made of it. A struct, since the engine makes and reads it."""

    selection: object
    frame: Frame
    applied: tuple[Any, ...]
    answer: Any


class Frame:
    """All of a body but its messages, in whose place there is a 0. `model` is that of the body as it came.

    `told` is for those who ask a frame the same again and again, by what they are.
    """

    __slots__ = ("_edited", "_ends", "_outcomes", "fields", "model", "told")

    def __init__(self, fields: dict[str, Any], model: str | None) -> None:
        self.fields = fields
        self.model = model
        self.told: dict[object, int] = {}
        self._edited: dict[object, Frame] = {}
        self._outcomes: dict[tuple[int, int], Outcome] = {}
        self._ends: tuple[bytes, bytes] | None = None

    def edited(self, values: Mapping[str, Any], without: Collection[str]) -> Frame | None:
        """Return the frame with these fields, and without those; None where it would not come again."""
        if values and not _FLAGS.issuperset(map(type, values.values())):
            return None
        key = (*values.items(), *without)
        frame = self._edited.get(key)
        if frame is None:
            if len(self._edited) >= _MOST_EDITED:
                self._edited.clear()
            kept = {name: value for name, value in self.fields.items() if name not in without}
            frame = self._edited[key] = Frame(kept | dict(values), self.model)
        return frame

    def outcome(self, selection: object, inside: int) -> Outcome | None:
        """Return what came of such a body, for which these rules are, and of whose messages this is told."""
        known = self._outcomes.get((id(selection), inside))
        return known if known is not None and known.selection is selection else None

    def keep(self, outcome: Outcome, inside: int) -> None:
        """Keep what came of such a body."""
        if len(self._outcomes) >= _MOST_EDITED:
            self._outcomes.clear()
        self._outcomes[(id(outcome.selection), inside)] = outcome

    def around(self, messages: memoryview) -> tuple[bytes, memoryview, bytes]:
        """Return the text of an edited body with these messages, in pieces."""
        if self._ends is None:
            names = list(self.fields)
            at = names.index(MESSAGES)
            before = msgspec.json.encode({name: self.fields[name] for name in names[:at]})
            after = msgspec.json.encode({name: self.fields[name] for name in names[at + 1 :]})
            comma = b"," if at else b""
            self._ends = before[:-1] + comma + _NAME + b":", b"," + after[1:] if names[at + 1 :] else b"}"
        head, tail = self._ends
        return head, messages, tail


class Framed(Body):
    """A body whose messages are turns, and whose frame is known."""

    __slots__ = ("_messages", "frame", "turns")

    def __init__(
        self,
        source: bytes,
        frame: Frame,
        messages: memoryview,
        turns: list[Turn],
        raw: msgspec.Raw,
        *,
        is_edited: bool = False,
    ) -> None:
        fields = frame.fields.copy()
        fields[MESSAGES] = raw
        self.source = source
        self._fields = self._parsed = fields
        self.is_edited = is_edited
        self._decoded = {}
        self.frame = frame
        self.turns = turns
        self._messages = messages

    def put_all(self, values: Mapping[str, Any], without: Collection[str] = ()) -> Body:
        """Return the edited body, which is still framed where fields were only taken out of its frame, or are flags."""
        frame = None if MESSAGES in values or MESSAGES in without else self.frame.edited(values, without)
        return self.framed(frame) if frame is not None else super().put_all(values, without)

    def framed(self, frame: Frame) -> Framed:
        """Return the edited body with these messages and another frame."""
        new = Framed(self.source, frame, self._messages, self.turns, self._fields[MESSAGES], is_edited=True)
        new.share(self)
        return new

    def encode(self) -> bytes:
        """Return the JSON text, as any body's."""
        return b"".join(self.frame.around(self._messages)) if self.is_edited else self.source

    def text(self) -> bytes | Pieces:
        """Return the JSON text, as any body's."""
        if self.is_edited and len(self._messages) > _LONG_BYTES:
            return Pieces(self.frame.around(self._messages))
        return self.encode()

    def repeated_name(self) -> None:
        """Return None: a body that has a name twice is not framed."""


class Frames:
    """The frames that were met, bounded, since a client chooses what it sends."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        # None: met once, as most are that no other request has. False: of no use.
        self._known: dict[Around, Frame | Literal[False] | None] = {}

    def parse(self, source: bytes) -> Body | None:
        """Return the body, or None where the bytes are no JSON object."""
        at = source.find(_NAME, 0, _LONGEST_FRAME)
        start = source.find(b"[", at, at + _LONGEST_NAME) if at >= 0 else -1
        end = source.rfind(_END, -_LONGEST_FRAME) + len(_END) if start >= 0 else 0
        if end <= start or len(source) - end + start > _LONGEST_FRAME:
            return Body.parse(source)
        around = (source[:start], source[end:])
        frame = self._known.get(around) or self._met(around, is_long=end - start > _LONG_BYTES)
        turns = read_turns(messages := memoryview(source)[start:end]) if frame is not None else None
        if frame is None or turns is None:
            return Body.parse(source)
        return Framed(source, frame, messages, turns, msgspec.Raw(messages))

    def _met(self, around: Around, *, is_long: bool) -> Frame | None:
        """Return the frame where it was met before, or the body is long, and None where it is of no use."""
        known = self._known
        if known.get(around) is False:
            return None
        if len(known) >= _MOST_FRAMES:
            known.clear()
        if not is_long and around not in known:
            known[around] = None
            return None
        frame = _made(*around)
        known[around] = frame or False
        return frame


def _made(before: bytes, after: bytes) -> Frame | None:
    """Return the frame, or None where the messages of the body are not what stands between, or a name is there twice.

    They are where they become what is put there, 0 and then 1, and nothing more: else a list of that name further down,
    in a text, or one of two, could be taken for them.
    """
    body, other = Body.parse(b"%b0%b" % (before, after)), Body.parse(b"%b1%b" % (before, after))
    if body is None or other is None or (body.raw(MESSAGES), other.raw(MESSAGES)) != (b"0", b"1"):
        return None
    return Frame(dict(body.raw_items()), model_of(body)) if body.repeated_name() is None else None


def model_of(body: Body) -> str | None:
    """Return the model that the body names; None where that is no text, or can't be read."""
    try:
        model = body.get("model")
    except UnreadableBody:
        return None
    return model if isinstance(model, str) else None
