"""What an answer's compressed bytes become, however they are cut."""

import gzip
import zlib

import pytest

from proxy.codings import PIECE_BYTES, beginning, inflater
from proxy.errors import BackendFault

PLAIN = b"data: {}\n\n" * 30_000


def bare(data):
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush()


def inflated(coding, parts):
    inflate = inflater([("Content-Encoding", coding)])
    pieces = []
    for part in parts:
        rest = part
        while rest:
            piece, rest = inflate(rest)
            pieces.append(piece)
    assert max(map(len, pieces)) <= PIECE_BYTES
    return b"".join(pieces)


CASES = [
    pytest.param("gzip", gzip.compress(PLAIN), PLAIN, id="gzip"),
    pytest.param("GZIP", gzip.compress(PLAIN), PLAIN, id="gzip in capitals"),
    pytest.param("gzip", gzip.compress(PLAIN) + gzip.compress(b"") + gzip.compress(b"x"), PLAIN + b"x", id="members"),
    pytest.param("gzip", gzip.compress(b"x") * 5000, b"x" * 5000, id="thousands of members"),
    pytest.param("gzip", gzip.compress(b"x") + bytes(9000), b"x", id="padding behind the last member"),
    pytest.param("gzip", gzip.compress(b"x") + b"junk", b"x", id="junk behind the last member"),
    pytest.param("deflate", zlib.compress(PLAIN), PLAIN, id="deflate"),
    pytest.param("deflate", bare(PLAIN), PLAIN, id="bare deflate"),
    pytest.param("identity", PLAIN[:900], PLAIN[:900], id="identity"),
    pytest.param("gzip", gzip.compress(PLAIN)[:200], None, id="an end that is missing"),
]


@pytest.mark.parametrize("size", [1, 3, 5000, 10_000_000])
@pytest.mark.parametrize(("coding", "data", "plain"), CASES)
def test_any_cut_gives_the_same_bytes(coding, data, plain, size):
    met = inflated(coding, [data[start : start + size] for start in range(0, len(data), size)])
    assert met == plain if plain is not None else PLAIN.startswith(met)


@pytest.mark.parametrize(("coding", "data"), [("gzip", b"plain"), ("deflate", b"\x78\x9c\xff\xff"), ("br", b"x")])
def test_what_can_t_be_undone_is_a_fault_and_its_beginning_is_what_came(coding, data):
    with pytest.raises(BackendFault, match="compressed"):
        inflated(coding, [data])
    assert beginning([("Content-Encoding", coding)], data, 3) == data[:3]


def test_the_beginning_of_a_body_is_plain_and_bounded():
    assert beginning([("Content-Encoding", "gzip")], gzip.compress(PLAIN), 1000) == PLAIN[:1000]
