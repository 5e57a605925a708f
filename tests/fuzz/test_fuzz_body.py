"""Reading and editing a request's JSON against the standard library's reader, whatever the bytes."""

import json
import math
from pathlib import Path

import msgspec

from proxy import fields
from proxy.body import Body, UnreadableBody
from proxy.fields import ABSENT, parse_path

DATA = Path(__file__).parent.parent / "data" / "streams" / "answers"
REQUESTS = [
    b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"n":3}',
    b'{"a":[1,{"b":[null,true]},2.50,1e2],"a.b":{"\\u00e9":"\\ud83d\\ude00"},"":-0.0,"x":12345678901234567890123}',
    b' {\n "tools" : [ { "type" : "function" , "function" : {"name":"f","parameters":{}} } ] ,"top_p":0 }\n',
    b'{"n":1,"n":2,"\\u006e":3}',
    b'{"a":NaN,"b":"\\ud800","c":[[[[[[[[]]]]]]]],"d":1E400}',
    b'{"a":{"b":1E400,"b":1},"c":{"d":"\\ud800","d":2}}',
    b'{"a":1E400,"a":1}',
]
SEEDS = [bytes([number, 3]) + text for number, text in enumerate(REQUESTS)]
SEEDS += [b"\2\1" + path.read_bytes()[:1500] for path in sorted(DATA.glob("*.json"))[:8]]
WORDS = [b'"', b"\\", b"\\u0061", b"{", b"}", b"[", b"]", b",", b":", b"null", b"1e5", b"-", b'"n":', b" ", b"\xc3\xa9"]
PATHS = [
    parse_path(text) for text in ("a", "n", "a.b", "messages[*].role", "*", "*[*]", "*.*", "a[-1].b", "x.y.z", '[""]')
]
VALUES = [None, True, 0, 1.5, "te\u00e9xt", [1, {"k": "v"}], {"new": []}]
RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_strictly(source):
    """Return (value, whether a top-level name stands twice) of a JSON object as RFC 8259 has it; None for all else."""
    tops = []

    def pairs(members):
        # Also of what a later value of the same name hides: a strict reader reads that too.
        if not all(is_sayable(name) and is_sayable(item) for name, item in members):
            raise ValueError
        tops.append(members)
        return dict(members)

    def refuse(_word):
        raise ValueError

    try:
        value = json.loads(source.decode(), parse_constant=refuse, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return value, len(tops[-1]) > len(value)


def is_sayable(value):
    """Return whether a strict reader takes the value: every number finite, no half of a surrogate pair."""
    if isinstance(value, dict):
        return all(is_sayable(key) and is_sayable(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(is_sayable, value))
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    return not isinstance(value, float) or math.isfinite(value)


def typed(value):
    """Return the value so that 1, 1.0 and true differ."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value), value


def decoded(body):
    try:
        return dict(body)
    except UnreadableBody:
        return None


def check(data):
    steer, source = data[:2].ljust(2, b"\0"), data[2:]
    body, strict = Body.parse(source), read_strictly(source)
    if body is None:
        assert strict is None
        return
    assert body.encode() == source
    value = decoded(body)
    twice = body.repeated_name() is not None
    if strict is None:
        # A value that a later one of its name hides is never decoded; such a body is not edited.
        assert value is None or twice, "something that is no JSON was read as JSON"
        return
    assert typed(value) == typed(strict[0])
    assert twice is strict[1]
    path, new = PATHS[steer[0] % len(PATHS)], VALUES[steer[1] % len(VALUES)]
    check_edits(body, strict[0], path, new)


def check_edits(body, value, path, new):
    places = [place for place, _ in fields.find(value, path)]
    assert [place for place, _ in fields.find(body, path)] == places
    for place in places[:3]:
        assert_edited(body, body.put(place, new), put_plainly(value, place, new), place[0])
        assert_edited(body, body.cut(place), put_plainly(value, place, ABSENT), place[0])
    assert decoded(body) == value


def assert_edited(before, after, expected, name):
    """The text says what was meant, and every other field is the same to the byte and at its place."""
    raw, was = RAW.decode(after.encode()), RAW.decode(before.source)
    assert typed(json.loads(after.encode())) == typed(expected) == typed(dict(after))
    assert [key for key in was if key in raw] == list(raw)
    assert {key: bytes(text) for key, text in raw.items() if key != name} == {
        key: bytes(text) for key, text in was.items() if key != name
    }


def put_plainly(value, place, new):
    value = json.loads(json.dumps(value))
    *way, last = place
    inner = value
    for step in way:
        inner = inner[step]
    if new is ABSENT:
        del inner[last]
    else:
        inner[last] = new
    return value


def test_any_json_is_read_and_edited_as_the_standard_library_would(fuzz):
    fuzz(check, SEEDS, WORDS)
