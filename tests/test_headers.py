"""What a proxy drops, adds and says in HTTP headers."""

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import headers

HOP_BY_HOP = ["Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "TE"]
HOP_BY_HOP += ["Trailer", "Transfer-Encoding", "Upgrade"]


@pytest.mark.parametrize("name", HOP_BY_HOP)
def test_a_header_between_two_hops_is_dropped_however_it_is_spelt(name):
    kept = [("Accept", "*/*"), ("X-A", "1")]
    for spelt in (name, name.lower(), name.upper()):
        assert headers.strip_hop_by_hop([kept[0], (spelt, "x"), kept[1]]) == kept


@pytest.mark.parametrize(
    ("said", "passed"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([("Connection", "X-Hop"), ("X-Hop", "1"), ("X-End", "2")], [("X-End", "2")], id="a named header"),
        pytest.param([("x-hop", "1"), ("connection", "close, X-HOP")], [], id="a named header that comes first"),
        pytest.param(
            [("Connection", "a"), ("Connection", "b"), ("A", "1"), ("B", "2")], [], id="two Connection fields"
        ),
        pytest.param([("Connection", " ,\ta , "), ("A", "1")], [], id="blanks and empty members"),
        pytest.param(
            [("Connection", "ab"), ("A", "1"), ("AB-C", "2")], [("A", "1"), ("AB-C", "2")], id="whole names only"
        ),
        pytest.param(
            [("A", "2"), ("a", "1"), ("A", "2")], [("A", "2"), ("a", "1"), ("A", "2")], id="repeats keep their order"
        ),
    ],
)
def test_what_may_pass_a_proxy(said, passed):
    assert headers.strip_hop_by_hop(said) == passed


@pytest.mark.parametrize(
    "name", ["Content-Length", "Content-Encoding", "Content-Digest", "Digest", "Content-MD5", "ETag", "etag"]
)
def test_a_header_that_describes_the_bytes_goes_with_them(name):
    assert headers.strip_of_the_bytes([(name, "x"), ("Content-Type", "y")]) == [("Content-Type", "y")]


def toward_backend(said, **given_):
    known = {"peer": "10.0.0.9", "scheme": "https", "version": "1.1", "request_id": "r-1"}
    return headers.toward_backend(said, **(known | given_))


FORWARDED = [
    pytest.param([], {}, "Via", ["1.1 mendproxy"], id="Via names the protocol and the proxy"),
    pytest.param([], {"version": "1.0"}, "Via", ["1.0 mendproxy"], id="Via names an old protocol"),
    pytest.param([("via", "1.0 a")], {}, "Via", ["1.0 a, 1.1 mendproxy"], id="Via is appended to"),
    pytest.param([("Via", "1 a"), ("VIA", "2 b")], {}, "Via", ["1 a, 2 b, 1.1 mendproxy"], id="two Via become one"),
    pytest.param([], {}, "X-Forwarded-For", ["10.0.0.9"], id="the peer is told"),
    pytest.param(
        [("x-forwarded-for", "1.2.3.4")], {}, "X-Forwarded-For", ["1.2.3.4, 10.0.0.9"], id="the peer comes last"
    ),
    pytest.param(
        [("X-Forwarded-For", "1.2.3.4")], {"peer": None}, "X-Forwarded-For", ["1.2.3.4"], id="no peer is known"
    ),
    pytest.param([], {}, "X-Forwarded-Proto", ["https"], id="the scheme is told"),
    pytest.param(
        [("X-Forwarded-Proto", "http")], {}, "X-Forwarded-Proto", ["http"], id="the first proxy's scheme stays"
    ),
    pytest.param([("Host", "api.example")], {}, "X-Forwarded-Host", ["api.example"], id="the host is told"),
    pytest.param([], {}, "X-Forwarded-Host", [], id="no host, nothing told"),
    pytest.param(
        [("Host", "b"), ("X-Forwarded-Host", "a")], {}, "X-Forwarded-Host", ["a"], id="the first proxy's host stays"
    ),
    pytest.param([("Host", "b")], {}, "Host", [], id="the backend's host is not the client's"),
    pytest.param([("Expect", "100-continue")], {}, "Expect", [], id="Expect was for the proxy"),
    pytest.param([("x-request-id", "theirs")], {}, "X-Request-Id", ["r-1"], id="one request id"),
    pytest.param(
        [("Connection", "via"), ("Via", "1.1 a")], {}, "Via", ["1.1 a, 1.1 mendproxy"], id="Via can't be hidden"
    ),
    pytest.param([("Authorization", "Bearer k")], {}, "Authorization", ["Bearer k"], id="credentials go on"),
    pytest.param([("Accept", "a"), ("accept", "b")], {}, "Accept", ["a", "b"], id="repeated headers go on"),
    pytest.param([("TE", "trailers")], {}, "TE", [], id="hop-by-hop headers don't"),
]


@pytest.mark.parametrize(("said", "known", "name", "values"), FORWARDED)
def test_what_goes_on_to_the_backend(said, known, name, values):
    passed = toward_backend(said, **known)
    assert [value for key, value in passed if key.lower() == name.lower()] == values


def test_the_client_s_own_headers_come_first_and_as_they_were_spelt():
    said = [("X-b", "2"), ("x-A", "1"), ("X-b", "3")]
    assert toward_backend(said)[:3] == said


@pytest.mark.parametrize(
    ("value", "is_sane"),
    [
        pytest.param("abc-123", True, id="a usual id"),
        pytest.param("!" * 128, True, id="128 visible characters"),
        pytest.param("x" * 129, False, id="too long"),
        pytest.param("", False, id="empty"),
        pytest.param("a b", False, id="a space"),
        pytest.param("a\tb", False, id="a control character"),
        pytest.param("a\nb", False, id="a line feed"),
        pytest.param("é", False, id="beyond ASCII"),
        pytest.param("\udcff", False, id="bytes that are no text"),
    ],
)
def test_a_request_id_is_taken_over_only_if_it_is_sane(value, is_sane):
    assert headers.sane_request_id([("X-Request-ID", value)]) == (value if is_sane else None)


def test_no_request_id_is_none():
    assert headers.sane_request_id([("Accept", "x")]) is None


PREFERENCES = [
    pytest.param(["handling=strict"], True, id="strict"),
    pytest.param(["Handling=Strict"], True, id="in any case"),
    pytest.param(['handling="strict"'], True, id="in quotes"),
    pytest.param(["handling = strict"], True, id="with blanks"),
    pytest.param(["handling=strict; why=because"], True, id="with a parameter"),
    pytest.param(["respond-async, wait=10, handling=strict"], True, id="one of many"),
    pytest.param(["respond-async", "handling=strict"], True, id="in a second field"),
    pytest.param(['note="a, b\\", c", handling=strict'], True, id="behind a quoted comma"),
    pytest.param(["handling=strict, handling=lenient"], True, id="the first of two counts"),
    pytest.param(["handling=lenient, handling=strict"], False, id="the first of two is lenient"),
    pytest.param(["handling=lenient"], False, id="lenient"),
    pytest.param(["handling"], False, id="no value"),
    pytest.param(["handling=stricter"], False, id="another value"),
    pytest.param(["mishandling=strict"], False, id="another preference"),
    pytest.param(["wait=1;handling=strict"], False, id="a parameter of another preference"),
    pytest.param(['note="x, handling=strict"'], False, id="inside a quoted value"),
    pytest.param([""], False, id="empty"),
    pytest.param([], False, id="absent"),
]


@pytest.mark.parametrize(("values", "expected"), PREFERENCES)
def test_a_client_prefers_errors_to_losses(values, expected):
    assert headers.is_strict([("Prefer", value) for value in values]) is expected


@given(st.lists(st.text()))
def test_any_preference_is_read_or_passed_over(values):
    assert headers.is_strict([("prefer", value) for value in values]) in (True, False)


def parsed(value):
    return http_sf.parse(value.encode(), tltype="list")


def test_repairs_are_a_structured_list_in_the_order_of_the_rules():
    value = headers.repairs((("sglang/meta-info-streamed", None, None), ("n-too-big", "choices 9 to 12", None)))
    assert value == 'sglang/meta-info-streamed;loss="none", n-too-big;loss="choices 9 to 12"'
    assert [(str(rule), parameters) for rule, parameters in parsed(value)] == [
        ("sglang/meta-info-streamed", {"loss": "none"}),
        ("n-too-big", {"loss": "choices 9 to 12"}),
    ]


RULE_IDS = st.from_regex(r"\A([a-z0-9][a-z0-9._-]{0,9}/)?[a-z0-9][a-z0-9._-]{0,20}\Z")


@given(st.lists(st.tuples(RULE_IDS, st.none() | st.text(min_size=1), st.none() | st.text(min_size=1)), min_size=1))
def test_repairs_parse_back_whatever_the_rules_say(applied):
    members = parsed(headers.repairs(tuple(applied)))
    assert [str(rule) for rule, _ in members] == [rule for rule, _, _ in applied]
    for (_, told), (_, loses, warning) in zip(members, applied, strict=True):
        assert told["loss"].isascii()
        assert len(told["loss"]) == len(loses or "none")
        assert ("warning" in told) == (warning is not None)


def test_a_rule_whose_id_begins_with_a_digit_is_told_as_a_string():
    assert headers.repairs((("3-choices", None, None),)) == '"3-choices";loss="none"'


@pytest.mark.parametrize(
    ("details", "value"),
    [
        pytest.param(None, "mendproxy;error=dns_error", id="the token alone"),
        pytest.param('say "ü"', 'mendproxy;error=dns_error;details="say \\"?\\""', id="with details"),
    ],
)
def test_proxy_status_is_a_structured_list(details, value):
    assert headers.proxy_status("dns_error", details) == value
    ((name, parameters),) = parsed(value)
    assert (str(name), str(parameters["error"])) == ("mendproxy", "dns_error")


def test_headers_of_the_wire_keep_their_spelling_and_survive_any_bytes():
    raw = [(b"X-Odd", b"caf\xc3\xa9"), (b"x-bytes", b"\xff\xfe")]
    said = headers.of_wire(raw)
    assert said[0] == ("X-Odd", "café")
    assert said[1][1].encode("utf-8", "surrogateescape") == b"\xff\xfe"


@pytest.mark.parametrize(
    ("name", "value"),
    [("accept", "1"), ("x", None)],
    ids=["the first of that name in any case", "absent"],
)
def test_one_header_is_got(name, value):
    assert headers.get([("ACCEPT", "1"), ("Accept", "2")], name) == value


def test_headers_are_left_out_by_name():
    assert headers.without([("A", "1"), ("b", "2"), ("a", "3")], "a") == [("b", "2")]


LOCATIONS = [
    pytest.param("http://b:1/v1/models", "/v1/models", id="the backend's own address is left out"),
    pytest.param("http://b:1", "/", id="and is the root alone"),
    pytest.param("HTTP://B:1/x?y", "/x?y", id="in any case"),
    pytest.param("http://b:1?x", "?x", id="before a query"),
    pytest.param("http://b:12/x", "http://b:12/x", id="another port stays"),
    pytest.param("http://b:1.example/x", "http://b:1.example/x", id="another host stays"),
    pytest.param("/elsewhere", "/elsewhere", id="a path stays"),
]


@pytest.mark.parametrize(("location", "told"), LOCATIONS)
def test_a_redirect_does_not_lead_around_the_proxy(location, told):
    assert headers.relative_to("http://b:1", "Location", location) == ("Location", told)
    assert headers.relative_to("http://b:1", "X-Location", location) == ("X-Location", location)


NAMES = st.sampled_from(
    b"Host host Connection Via X-Forwarded-For x-forwarded-proto X-Forwarded-Host Prefer Content-Length content_length "
    b"Content-Encoding Transfer-Encoding X-Request-Id X-A x-a a: \xc3\xa9".split()
)
VALUES = st.sampled_from(
    [
        b"",
        b"1",
        b"close",
        b"X-A, via",
        b"a, " * 99 + b"x-a",
        b"x-forwarded-proto",
        b"a\tb",
        b"\x01",
        b"\xff",
        b"\xc3\xa9",
    ]
)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6))
def test_a_head_that_came_by_wire_is_told_as_any_list_of_headers(raw):
    said = headers.of_wire(raw)
    plain = [(name.decode("utf-8", "surrogateescape"), value.decode("utf-8", "surrogateescape")) for name, value in raw]
    assert said == plain
    for asked in (
        headers.fault_in,
        headers.head_bytes,
        headers.strip_hop_by_hop,
        headers.strip_of_the_bytes,
        headers.content_coding,
        headers.is_strict,
        toward_backend,
        lambda head: [headers.get(head, name.lower()) for name, _ in plain],
        lambda head: toward_backend(head, peer=None),
    ):
        assert asked(said) == asked(plain)
