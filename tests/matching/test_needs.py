"""A matcher that needs a field which is absent fails at once, and looks at no other field."""

import pytest

from proxy.body import Body, UnreadableBody
from proxy.fields import ABSENT
from proxy.matching import Facts, compile_matcher


def facts(source: bytes | None) -> Facts:
    body = None if source is None else Body.parse(source)
    return Facts("POST", "/v1/chat/completions", {}, {}, "m", "main", body)


BOTH = {"body": {"x": {"gt": 1}, "y": {"exists": True}}}
EITHER = {"body": {"x": {"gt": 1}}, "any": [{"body": {"y": 1, "z": 1}}, {"body": {"y": 2}}]}

NEITHER = {"not": {"not": {"method": "POST", "body": {"x": {"gt": 1}, "y": 1}}}}

MISSED = [
    pytest.param(BOTH, b'{"x":1e999}', ("body.y: {exists: true}", ABSENT), id="unreadable, and another one absent"),
    pytest.param(BOTH, b'{"x":1}', ("body.x: {gt: 1}", 1), id="the first that fails is told, not the absent one"),
    pytest.param(BOTH, b'{"x":2}', ("body.y: {exists: true}", ABSENT), id="absent"),
    pytest.param(BOTH, None, ("body.x: {gt: 1}", ABSENT), id="no body"),
    pytest.param(BOTH, b'{"x":2,"y":1}', None, id="all there"),
    pytest.param(
        NEITHER,
        b'{"x":1e999}',
        ("not: {not: {method: POST, body: {x: {gt: 1}, y: 1}}}", "unreadable"),
        id="unreadable, and not looked at to fail",
    ),
]


@pytest.mark.parametrize(("when", "source", "miss"), MISSED)
def test_what_is_missed_is_told(when, source, miss):
    matcher = compile_matcher(when)
    told = matcher.first_miss(facts(source))
    assert (told and (told[0].replace('"', ""), told[1])) == miss
    assert matcher.holds(facts(source)) is (miss is None)


@pytest.mark.parametrize(("when", "source"), [(BOTH, b'{"x":1e999,"y":1}'), (EITHER, b'{"x":1e999,"y":2}')])
def test_a_field_that_can_not_be_read_is_told_where_nothing_is_absent(when, source):
    matcher = compile_matcher(when)
    for look in (matcher.holds, matcher.first_miss):
        with pytest.raises(UnreadableBody, match="'x'"):
            look(facts(source))


def test_what_all_of_any_need_is_needed():
    assert compile_matcher(EITHER).needs == {"x", "y"}
    assert compile_matcher(EITHER).holds(facts(b'{"x":1e999}')) is False
