"""A request's JSON body whose top-level fields are decoded only when somebody looks.

    bytes → {name: raw bytes of its value} → decoded on access → edited fields encoded again, the rest as they came

A body is a value: `put`, `cut` and `put_all` return another one and share what they leave alone.

Source: RFC 8259; what msgspec refuses (NaN, lone surrogates, nesting beyond the recursion limit) is not JSON here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, ItemsView, Iterator, Mapping, Set
from typing import Any, Final, Literal

import msgspec

from proxy import fields
from proxy.fields import Place

_TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STRING = re.compile(rb'\s*("(?:[^"\\]|\\.)*")\s*:\s*', re.DOTALL)
_NEXT = re.compile(rb"\s*([,}])")
_SHORT_BYTES: Final = 64 * 1024

Kind = Literal["string", "number", "boolean", "array", "object", "null"]

_KINDS: Final[Mapping[int, Kind]] = {
    ord('"'): "string",
    ord("t"): "boolean",
    ord("f"): "boolean",
    ord("["): "array",
    ord("{"): "object",
    ord("n"): "null",
}


class Pieces:
    """A long text in pieces, put together only where somebody asks for `bytes`: each copy of it costs."""

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: tuple[bytes | memoryview, ...]) -> None:
        self.pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        """Return the size of all of it."""
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


class UnreadableBody(ValueError):
    """A part of the body that somebody looked at is not JSON as RFC 8259 has it."""


class Body(Mapping[str, Any]):
    """A JSON object, read lazily. Values that it hands out must not be changed in place."""

    __slots__ = ("_decoded", "_fields", "_parsed", "is_edited", "source")

    def __init__(self, source: bytes, raw: dict[str, Any], *, is_edited: bool = False) -> None:
        self.source = source
        self._fields = raw
        self.is_edited = is_edited  # it differs from the bytes that it was parsed from
        self._parsed = raw
        self._decoded: dict[str, Any] = {}

    @classmethod
    def parse(cls, source: bytes) -> Body | None:
        """Return the body, or None where the bytes are no JSON object."""
        try:
            return cls(source, _TOP.decode(source))
        except (msgspec.DecodeError, RecursionError):
            return None

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Body:
        """Return the body of a JSON object that is already decoded."""
        return cls(b"", dict(value), is_edited=True)

    def __getitem__(self, name: str) -> Any:
        """Return the field's value.

        Raises: KeyError when absent, UnreadableBody when its bytes can't be decoded.
        """
        value = self._fields[name]
        if type(value) is not msgspec.Raw:
            return value
        if name not in self._decoded:
            self._decoded[name] = _decode(name, value)
        return self._decoded[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the field's value, or the default where it is absent. Raises: UnreadableBody."""
        # A mapping's own would raise KeyError to itself for each field that is absent, which most are.
        return self[name] if name in self._fields else default

    def raw(self, name: str) -> bytes | None:
        """Return the bytes that a field came with; None where it is absent, or was edited."""
        value = self._fields.get(name)
        return bytes(value) if type(value) is msgspec.Raw else None

    def kind(self, name: str) -> Kind:
        """Return of which kind the field's value is, told without decoding it.

        Raises: KeyError when absent.
        """
        value = self._fields[name]
        if type(value) is not msgspec.Raw:
            return kind_of(value)
        return _KINDS.get(memoryview(value)[0], "number")  # the parser let no blank and no half of a literal through

    def is_true(self, name: str) -> bool:
        """Return whether the field is there and true, told without decoding it."""
        value = self._fields.get(name)
        return value is True or (type(value) is msgspec.Raw and bytes(value) == b"true")

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def has_all(self, names: Set[str]) -> bool:
        """Return whether the body has every one of the fields."""
        return names <= self._fields.keys()

    def raw_items(self) -> ItemsView[str, Any]:
        """Return the fields as they stand: `msgspec.Raw` where nobody edited them."""
        return self._fields.items()

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def put(self, place: Place, value: Any) -> Body:
        """Return the body with `value` at `place`, a field keeping its position.

        Raises: LookupError where the place can't be reached.
        """
        name, rest = place[0], place[1:]
        if not isinstance(name, str):
            raise LookupError("a body is an object, not a list")
        return self.put_all({name: fields.put(self.get(name, {}), rest, value) if rest else value})

    def cut(self, place: Place) -> Body:
        """Return the body without the value at `place`, which must be there."""
        name, rest = place[0], place[1:]
        if rest:
            return self.put((name,), fields.cut(self[str(name)], rest))
        return self.put_all({}, without=(str(name),))

    def put_all(self, values: Mapping[str, Any], without: Collection[str] = ()) -> Body:
        """Return the body with these top-level fields, and without those, in one copy; put fields keep their position.

        Shape: {a: 1, b: 2}, values={b: 3, c: 4}, without=[a] → {b: 3, c: 4}
        """
        kept = {name: value for name, value in self._fields.items() if name not in without}
        return self._with(kept | dict(values) if values else kept)

    def _with(self, raw: dict[str, Any]) -> Body:
        new = Body(self.source, raw, is_edited=True)
        new.share(self)
        return new

    def share(self, other: Body) -> None:
        """Know what is known of the body that this one was made of."""
        self._parsed = other._parsed
        self._decoded = other._decoded  # decoded values are of raw fields only, which all copies share

    def encode(self) -> bytes:
        """Return the JSON text: the original bytes when nothing was edited, untouched fields byte for byte.

        Raises: UnreadableBody where an edited field is nested too deeply.
        """
        try:
            return msgspec.json.encode(self._fields) if self.is_edited else self.source
        except RecursionError as error:
            raise UnreadableBody("an edited field is nested too deeply") from error

    def text(self) -> bytes | Pieces:
        """Return what `encode` does, in pieces where it is long and was put together. Raises: UnreadableBody."""
        return self.encode()

    def _is_plain(self) -> bool:
        """Return whether the source is what a common writer makes of its fields, so that none can be there twice.

        That is told from its length where there are no blanks, and for short bodies with Python's blanks by writing it.
        """
        names, values = list(self._parsed), list(self._parsed.values())
        blanks = len(self.source) - len(msgspec.json.encode(names)) - len(names)
        blanks -= sum([memoryview(raw).nbytes for raw in values])
        if not blanks or len(self.source) > _SHORT_BYTES:
            return not blanks
        pairs = [b"%b: %b" % (msgspec.json.encode(name), raw) for name, raw in zip(names, values, strict=True)]
        return self.source == b"{%b}" % b", ".join(pairs)

    def repeated_name(self) -> str | None:
        """Return a top-level name that stands twice in the source, or None.

        The bytes are walked in step with the parsed fields, which are in the order of their first places and have the
        values of their last: a name that is not the next one was met before, and a value that is not its name's is not
        its last.
        """
        if not self.source or self._is_plain():
            return None
        position = self.source.find(b"{") + 1
        for name, raw in self._parsed.items():
            key = _STRING.match(self.source, position)
            if key is None:
                return name
            met: str = msgspec.json.decode(key[1])
            value = memoryview(raw)
            after = _NEXT.match(self.source, key.end() + value.nbytes)
            if met != name or after is None or not self.source.startswith(value, key.end()):
                return met
            position = after.end()
        more = _STRING.match(self.source, position)
        return msgspec.json.decode(more[1], type=str) if more else None


def kind_of(value: Any) -> Kind:
    """Return of which kind a decoded value is."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _decode(name: str, raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableBody(f"the field {name!r} can't be read: {error}") from error
