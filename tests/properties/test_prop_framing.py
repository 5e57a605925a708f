"""Chunks of any sizes, cut and changed anywhere: what is taken for whole chunks is what a reader finds there."""

import re

from hypothesis import given
from hypothesis import strategies as st

from proxy.framing import LAST_CHUNK, MOST_BYTES, one_chunk, whole_chunks

CONTENTS = st.lists(
    st.binary(min_size=1, max_size=300) | st.sampled_from([b"\r\n", b"0\r\n\r\n", b"5\r\n"]), max_size=6
)
CHUNK = re.compile(rb"(0|[1-9a-f][0-9a-f]*)\r\n")


def chunk(content):
    return b"%x\r\n%b\r\n" % (len(content), content)


def read(data):
    """Return the contents of chunks, and whether they end the body; None where the bytes are aught else."""
    contents = []
    while data:
        size = CHUNK.match(data)
        if size is None:
            return None
        end = size.end() + int(size[1], 16)
        if data[end : end + 2] != b"\r\n":
            return None
        contents.append(data[size.end() : end])
        data = data[end + 2 :]
        if not contents[-1]:
            return (contents[:-1], True) if not data else None
    return (contents, False) if contents else None


def same(data):
    expected = read(data) if len(data) <= MOST_BYTES else None
    assert whole_chunks(data) == expected
    if data.endswith(b"\r\n"):
        is_one = expected is not None and len(expected[0]) == 1 and not expected[1]
        assert one_chunk(data) == (len(expected[0][0]) if is_one else 0)
    return expected


@given(CONTENTS, st.booleans())
def test_chunks_are_read_as_they_were_made(contents, is_end):
    data = b"".join(map(chunk, contents)) + (LAST_CHUNK if is_end else b"")
    assert same(data) == ((contents, is_end) if data else None)


@given(CONTENTS, st.booleans(), st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=3), st.integers(0, 3))))
def test_what_was_changed_is_read_as_a_reader_of_http_does(contents, is_end, changes):
    data = b"".join(map(chunk, contents)) + (LAST_CHUNK if is_end else b"")
    for at, new, cut in changes:
        place = at % (len(data) + 1)
        data = data[:place] + new + data[place + cut :]
        same(data)


def test_more_than_is_worth_looking_at_is_left_to_the_parser():
    data = chunk(b"x" * 2000) * 3
    assert whole_chunks(data) is None
