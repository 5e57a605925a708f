"""HTTP headers as values: what a proxy must drop, add and say.

Headers are sequences of (name, value) pairs, in order, names in the sender's own spelling.

Source: RFC 9110 §7.6 (Connection, Via), RFC 9209 (Proxy-Status), RFC 9651 (structured fields), RFC 7240 (Prefer).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from itertools import compress

import http_sf
from http_sf.types import BareItemType, ListType

Headers = Sequence[tuple[str, str]]

PSEUDONYM = "mendproxy"

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authentication-info",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# What a request says to its backend is told anew.
_OURS = ("host", "expect", "x-request-id", "via")
_OURS_WITH_PEER = (*_OURS, "x-forwarded-for")
# An edited message is another representation: what described the old bytes would lie about the new ones.
_OF_THE_BYTES = frozenset(
    {"content-length", "content-encoding", "content-digest", "repr-digest", "digest", "content-md5", "etag"}
)
# 20 digits hold any length that 64 bits do; Python refuses to read one of more than 4300.
_MAX_LENGTH_DIGITS = 20
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
_RAW = re.compile("[\udc80-\udcff]")
_SANE_ID = re.compile(r"[\x21-\x7e]{1,128}")
# What is remembered of names is bounded, since a client chooses them: all that one head has, the ways to leave some
# out, the names left out, and a Connection that tells them.
_LONGEST_KEPT_BYTES = 1024
_MOST_MASKS = 8
_MOST_DROPPED = 64
_LONGEST_CONNECTION = 256
# Most heads have none of these, so that all that asks for them need not be asked.
_UNUSUAL = frozenset(
    {"content-encoding", "expect", "location", "prefer", "transfer-encoding", "upgrade", "x-request-id"}
)
_PREFERENCE = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^,"]|")+')


class Names:
    """What a head's names tell by themselves: who speaks HTTP sends the same ones again and again."""

    __slots__ = ("_masks", "are_plain", "are_usual", "at", "length", "lowers", "texts")

    def __init__(self, raw: tuple[bytes, ...]) -> None:
        """Look at these; `at` is where each name, in lower case, stands first."""
        self.texts = [name.decode("utf-8", "surrogateescape") for name in raw]
        self.lowers = [name.lower() for name in self.texts]
        self.at = {name: at for at, name in reversed(list(enumerate(self.lowers)))}
        self.length = len("".join(self.texts))
        # Each once, so that none can be told in two ways.
        is_clear = len(self.at) == len(raw) and not any("_" in name for name in self.lowers)
        self.are_plain = is_clear and all(map(_TOKEN.fullmatch, self.lowers))
        self.are_usual = _UNUSUAL.isdisjoint(self.at)
        self._masks: dict[frozenset[str], list[bool]] = {}

    def are_usual_but(self, names: frozenset[str]) -> bool:
        """Return whether there is none of those that seldom come, but for these."""
        return self.are_usual or (_UNUSUAL - names).isdisjoint(self.at)

    def but(self, dropped: frozenset[str]) -> list[bool]:
        """Return which of the names are not among those that are dropped."""
        mask = self._masks.get(dropped)
        if mask is None:
            mask = [name not in dropped for name in self.lowers]
            if len(self._masks) >= _MOST_MASKS:
                self._masks.clear()
            if len(dropped) <= _MOST_DROPPED and len("".join(dropped)) <= _LONGEST_KEPT_BYTES:
                self._masks[dropped] = mask
        return mask


_known_names = functools.lru_cache(maxsize=256)(Names)


class HeaderList(list[tuple[str, str]]):
    """A head as it came, which is asked for often; it is not changed any more."""

    __slots__ = ("length", "names", "values_are_plain")

    def __init__(self, names: Names, values: Sequence[str]) -> None:
        """Hold these; `length` is that of all names and values."""
        super().__init__(zip(names.texts, values, strict=True))
        self.names = names
        text = "".join(values)
        self.length = names.length + len(text)
        self.values_are_plain = text.isascii() and text.isprintable()


@functools.lru_cache(maxsize=1024)
def _lower(name: str) -> str:
    return name.lower()


def of_wire(raw: Iterable[tuple[bytes, bytes]]) -> HeaderList:
    """Return headers as text, names spelt as they came. Bytes that are no UTF-8 survive as surrogates."""
    said, told = tuple(zip(*raw, strict=True)) or ((), ())
    names = _known_names(said) if sum(map(len, said)) <= _LONGEST_KEPT_BYTES else Names(said)
    values = b"\n".join(told).decode("utf-8", "surrogateescape").split("\n") if told else []
    if len(values) != len(told):
        values = [value.decode("utf-8", "surrogateescape") for value in told]
    return HeaderList(names, values)


def has_raw_bytes(headers: Iterable[tuple[str, str]]) -> bool:
    """Return whether a value holds bytes that are no UTF-8."""
    return any(_RAW.search(value) for _, value in headers)


def has_control(value: str) -> bool:
    """Return whether a value holds a control character other than a tab."""
    return _CONTROL.search(value) is not None


def encode_head(first_line: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return a message's head, bytes that are no UTF-8 as they came; control characters have to be kept out before."""
    return "\r\n".join([first_line, *map(": ".join, headers), "", ""]).encode("utf-8", "surrogateescape")


def head_bytes(headers: Headers) -> int:
    """Return how large a head is, about: the bytes of its names and values."""
    length = headers.length if isinstance(headers, HeaderList) else len("".join(map("".join, headers)))
    return length + len(": \r\n") * len(headers)


def fault_in(headers: Headers) -> str | None:
    """Return what in a message's headers could be read in more than one way, in words; None where nothing can.

    Source: RFC 9110 §5.5, §8.6, RFC 9112 §5.1.
    """
    return None if isinstance(headers, HeaderList) and _is_plain(headers) else _first_fault_in(headers)


def _is_plain(headers: HeaderList) -> bool:
    """Return whether no header can be at fault, told of all at once: most are of names that everybody knows."""
    if not (headers.values_are_plain and headers.names.are_plain):
        return False
    length = get(headers, "content-length")
    return length is None or (length.isdigit() and len(length) <= _MAX_LENGTH_DIGITS)


def _first_fault_in(headers: Headers) -> str | None:
    for name, value in headers:
        if not _TOKEN.fullmatch(name):
            return "a header whose name is no token"
        if has_control(value):
            return "a control character in a header"
        lower = name.lower()
        if lower == "content-length" and not (value.isascii() and value.isdigit() and len(value) <= _MAX_LENGTH_DIGITS):
            return "a Content-Length that is no length"
        if "_" in lower and lower.replace("_", "-") in ("content-length", "transfer-encoding"):
            return "a header that servers could take for its framing"
    codings = [value.lower() for name, value in headers if name.lower() == "transfer-encoding"]
    return "more than one Transfer-Encoding" if len(codings) > 1 else None


def get(headers: Headers, name: str) -> str | None:
    """Return the value of the first header of that name (lower case), or None."""
    if isinstance(headers, HeaderList):
        at = headers.names.at.get(name)
        return None if at is None else headers[at][1]
    length = len(name)
    for key, value in headers:
        if len(key) == length and key.lower() == name:
            return value
    return None


def content_coding(headers: Headers) -> str:
    """Return the content codings in lower case, of all lines that name some, or `identity`. Source: RFC 9110 §5.3."""
    if isinstance(headers, HeaderList) and "content-encoding" not in headers.names.at:
        return "identity"
    told = (value.strip().lower() for key, value in headers if key.lower() == "content-encoding")
    return ", ".join(filter(None, told)) or "identity"


def are_usual(headers: Headers) -> bool:
    """Return whether the headers surely have none of those that seldom come, and change what is done with a message."""
    return isinstance(headers, HeaderList) and headers.names.are_usual


def without(headers: Headers, *names: str) -> list[tuple[str, str]]:
    """Return the headers without those of the given names (lower case)."""
    return _left(headers, frozenset(names))


def _left(headers: Headers, dropped: frozenset[str]) -> list[tuple[str, str]]:
    if isinstance(headers, HeaderList):
        return list(compress(headers, headers.names.but(dropped)))
    return [header for header in headers if _lower(header[0]) not in dropped]


def strip_hop_by_hop(headers: Headers, *also: str) -> list[tuple[str, str]]:
    """Return the headers that may pass a proxy: without the hop-by-hop ones, those that Connection names, and `also`.

    Source: RFC 9110 §7.6.1.
    """
    return _left(headers, _hop_by_hop(headers, also))


def _hop_by_hop(headers: Headers, also: tuple[str, ...]) -> frozenset[str]:
    connection = get(headers, "connection")
    if connection is None:
        return _dropped((), also)
    if isinstance(headers, HeaderList) and headers.names.are_plain and len(connection) <= _LONGEST_CONNECTION:
        return _dropped((connection,), also)
    lines = tuple(value for name, value in headers if _lower(name) == "connection")
    return (_dropped if len("".join(lines)) <= _LONGEST_CONNECTION else _dropped.__wrapped__)(lines, also)


@functools.lru_cache(maxsize=256)
def _dropped(connection: tuple[str, ...], also: tuple[str, ...]) -> frozenset[str]:
    """Return the hop-by-hop names, those that the lines of a Connection header name, and others; in lower case."""
    return _HOP_BY_HOP | {token.strip().lower() for line in connection for token in line.split(",")} | set(also)


def relative_to(origin: str, name: str, value: str) -> tuple[str, str]:
    """Return a header as it is, but a Location below `origin` without it. Source: nginx, proxy_redirect default."""
    if name.lower() != "location" or not value.lower().startswith(origin.lower()):
        return name, value
    rest = value[len(origin) :]
    return (name, rest or "/") if rest[:1] in ("", "/", "?") else (name, value)


def strip_of_the_bytes(headers: Headers) -> list[tuple[str, str]]:
    """Return the headers without those that describe the message's bytes, for a message whose bytes are made anew."""
    return without(headers, *_OF_THE_BYTES)


def toward_backend(
    headers: Headers, *, peer: str | None, scheme: str, version: str, request_id: str
) -> list[tuple[str, str]]:
    """Return a client's headers as they go on to the backend: Via, X-Forwarded-* and the request's id added.

    Host is the backend's own, so it is left out here; the client's is told in X-Forwarded-Host. Expect was between
    the client and us.
    """
    dropped = _hop_by_hop(headers, _OURS_WITH_PEER if peer else _OURS)
    passed = _left(headers, dropped)
    names = headers.names.at if isinstance(headers, HeaderList) else {_lower(name) for name, _ in headers}
    via = f"{version} {PSEUDONYM}"
    passed.append(("Via", _appended(headers, "via", via) if "via" in names else via))
    if peer:
        passed.append(
            ("X-Forwarded-For", _appended(headers, "x-forwarded-for", peer) if "x-forwarded-for" in names else peer)
        )
    host = get(headers, "host")
    if "x-forwarded-proto" in dropped or "x-forwarded-proto" not in names:
        passed.append(("X-Forwarded-Proto", scheme))
    if host and ("x-forwarded-host" in dropped or "x-forwarded-host" not in names):
        passed.append(("X-Forwarded-Host", host))
    passed.append(("X-Request-Id", request_id))
    return passed


def _appended(headers: Headers, name: str, last: str) -> str:
    return ", ".join([*(value for key, value in headers if _lower(key) == name), last])


def sane_request_id(headers: Headers) -> str | None:
    """Return the client's x-request-id if it is 1 to 128 visible ASCII characters, else None."""
    value = get(headers, "x-request-id")
    return value if value is not None and _SANE_ID.fullmatch(value) else None


def is_strict(headers: Headers) -> bool:
    """Return whether the client prefers an error to a lossy repair: `Prefer: handling=strict` (RFC 7240 §4.4)."""
    if get(headers, "prefer") is None:
        return False
    preferences = (
        part.split(";")[0].replace(" ", "").replace("\t", "").replace('"', "").lower()
        for name, value in headers
        if name.lower() == "prefer"
        for part in _PREFERENCE.findall(value)
    )
    # The first of two contradicting preferences counts (RFC 7240 §2).
    return next((part for part in preferences if part.startswith("handling=")), "") == "handling=strict"


def proxy_status(token: str, details: str | None = None) -> str:
    """Return the value of Proxy-Status for an answer that the proxy made itself."""
    parameters: dict[str, BareItemType] = {"error": http_sf.Token(token)}
    if details:
        parameters["details"] = _ascii(details)
    members: ListType = [(http_sf.Token(PSEUDONYM), parameters)]
    return http_sf.ser(members)


def repairs(applied: tuple[tuple[str, str | None, str | None], ...]) -> str:
    """Return the value of Mendproxy-Repairs: a member for each (rule's id, what is lost, warning)."""
    members: ListType = []
    for rule, loses, warning in applied:
        parameters: dict[str, BareItemType] = {"loss": _ascii(loses or "none")}
        if warning:
            parameters["warning"] = _ascii(warning)
        # A token begins with a letter (RFC 9651 §3.3.4); an id that does not is said as a string.
        members.append((http_sf.Token(rule) if rule[:1].isalpha() else rule, parameters))
    return http_sf.ser(members)


def _ascii(text: str) -> str:
    # A structured field's string holds visible ASCII and spaces only (RFC 9651 §3.3.3).
    return "".join(char if " " <= char <= "~" else "?" for char in text)
