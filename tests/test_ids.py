"""The ids that requests are given."""

import os
import uuid

from proxy.server import Ids


def test_ids_are_random_uuids_and_none_is_given_twice():
    ids = Ids()
    given = [ids.new() for _ in range(1000)]
    assert len(set(given)) == len(given)
    for one in given:
        assert (str(uuid.UUID(one)), uuid.UUID(one).version, uuid.UUID(one).variant) == (one, 4, uuid.RFC_4122)


def test_a_process_that_was_forked_gives_none_that_its_parent_will(monkeypatch):
    ids = Ids()
    ids.new()
    held = set(ids._ids)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert held
    assert ids.new() not in held
