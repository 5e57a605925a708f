"""Changes good bytes until something breaks: what the short runs of the suite use, and long ones without atheris.

`fuzz(check, seeds)` hands `check` one mutant of a seed after another. What it draws follows from pytest's random seed,
so that a run which failed can be had again; the bytes themselves are told with the failure.
"""

import random
import time

import pytest

SHORT_S = 2.0
MAX_BYTES = 4096


def mutant(seeds, words, draw):
    """Return a seed, changed in one to eight places; `words` are pieces that mean something to the reader."""
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.randint(1, 8)):
        place = draw.randint(0, len(data))
        end = min(len(data), place + draw.choice((1, 1, 2, 4, 16, 64)))
        other = draw.choice(seeds)
        start = draw.randint(0, len(other))
        data[place:end] = draw.choice(
            (
                b"",
                bytes(data[place:end]) * 2,
                bytes([draw.randrange(256)]),
                bytes(byte ^ 1 << draw.randrange(8) for byte in data[place:end]),
                draw.choice(words),
                draw.choice(words) + bytes(data[place:end]),
                other[start : start + draw.choice((1, 8, 64, 512))] + bytes(data[place:end]),
            )
        )
    return bytes(data[:MAX_BYTES])


def run(check, seeds, words, seconds, draw):
    """Check the seeds, then mutants until the time is over. Return how many were checked."""
    until_s = time.monotonic() + seconds
    count = 0
    for data in seeds:
        _told(check, data)
    while time.monotonic() < until_s:
        _told(check, mutant(seeds, words, draw))
        count += 1
    return count


def _told(check, data):
    try:
        check(data)
    except BaseException as error:
        error.add_note(f"with {data!r}")
        raise


@pytest.fixture
def fuzz():
    """Return what checks mutants for a short time."""

    def fuzz_shortly(check, seeds, words):
        assert run(check, seeds, words, SHORT_S, random.Random(random.random())) > 0  # noqa: S311 nothing is secret

    return fuzz_shortly
