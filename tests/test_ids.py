"""The ids that requests are given."""

import subprocess
import sys
import uuid

from proxy.server import Ids


def test_ids_are_random_uuids_and_none_is_given_twice():
    ids = Ids()
    given = [ids.new() for _ in range(1000)]
    assert len(set(given)) == len(given)
    for one in given:
        assert (str(uuid.UUID(one)), uuid.UUID(one).version, uuid.UUID(one).variant) == (one, 4, uuid.RFC_4122)


FORKS = """
import os
from proxy.server import Ids
ids = Ids()
first = ids.new()
held = set(ids._ids)
if os.fork():
    os.wait()
else:
    print(len(held) > 1, ids.new() in held, flush=True)
    os._exit(0)
"""


def test_a_process_that_was_forked_gives_none_that_its_parent_will():
    done = subprocess.run(  # noqa: S603 our own interpreter
        [sys.executable, "-c", FORKS], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False"]
