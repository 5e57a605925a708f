"""Bytes as a case writes them down, and the comparison of JSON with the part of it that a case expects.

text ─► UTF-8      {bytes: "\\xe4"} ─► one byte a character      {json: …} ─► compact JSON
{join: [a, b]}     {repeat: a, times: 3}     {gzip: a} {deflate: a}     {text: …, encoding: utf-16-le}
"""

import gzip
import json
import zlib

_MAKERS = {
    "bytes": lambda value, _: value.encode("latin-1"),
    "json": lambda value, _: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(),
    "join": lambda value, _: b"".join(map(to_bytes, value)),
    "repeat": lambda value, whole: to_bytes(value) * whole["times"],
    "gzip": lambda value, _: gzip.compress(to_bytes(value), mtime=0),
    "deflate": lambda value, _: zlib.compress(to_bytes(value)),
    "text": lambda value, whole: value.encode(whole["encoding"]),
}
_EXTRAS = {"repeat": {"times"}, "text": {"encoding"}}


def is_value(written):
    """Return whether something is bytes written down."""
    return isinstance(written, str) or (isinstance(written, dict) and not _MAKERS.keys().isdisjoint(written))


def to_bytes(written):
    """Return the bytes that are written down. Raises: KeyError, ValueError for what is none of the forms above."""
    if isinstance(written, str):
        return written.encode()
    kind = next(name for name in written if name in _MAKERS)
    check_keys(written, {kind, *_EXTRAS.get(kind, ())})
    return _MAKERS[kind](written[kind], written)


def check_keys(mapping, known):
    """Raise ValueError for a key that nobody reads, since what it states would never be checked."""
    unknown = set(mapping) - set(known)
    if unknown:
        raise ValueError(f"unknown keys {sorted(map(str, unknown))}; there are {sorted(known)}")


def differences(met, wanted, place="", *, is_part=True):
    """Return in words where JSON differs from what is expected of it.

    Objects are compared by the keys that are expected (by all where it is no part), lists element by element, scalars
    strictly: true is not 1, but 1 is 1.0.
    """
    if isinstance(wanted, dict) and isinstance(met, dict):
        return _of_objects(met, wanted, place, is_part)
    if isinstance(wanted, list) and isinstance(met, list) and len(met) == len(wanted):
        return [
            difference
            for index, (one, other) in enumerate(zip(met, wanted, strict=True))
            for difference in differences(one, other, f"{place}[{index}]", is_part=is_part)
        ]
    is_equal = met == wanted and isinstance(met, bool) == isinstance(wanted, bool)
    return [] if is_equal else [f"{place or 'it'} is {met!r}, not {wanted!r}"]


def _of_objects(met, wanted, place, is_part):
    found = [] if is_part else [f"{place}.{key} is there, with {met[key]!r}" for key in met if key not in wanted]
    for key, value in wanted.items():
        if key in met:
            found += differences(met[key], value, f"{place}.{key}", is_part=is_part)
        else:
            found.append(f"{place}.{key} is absent")
    return found
