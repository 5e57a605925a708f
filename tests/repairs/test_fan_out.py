"""The bodies of a fan's branches: what differs between them, and what stays byte for byte."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.body import Body
from proxy.repairs.card import Fan
from proxy.repairs.fan_out import branch_bodies

GREATEST = 2**63 - 1

CASES = [
    pytest.param({"seed": 42}, Fan(4), "seed", [42, 43, 44, 45], id="each branch has its own seed"),
    pytest.param({"seed": 9007199254740993}, Fan(3), "seed", [2**53 + 1, 2**53 + 2, 2**53 + 3], id="no digit is lost"),
    pytest.param({"seed": GREATEST}, Fan(3), "seed", [GREATEST, 0, 1], id="the greatest seed goes on from zero"),
    pytest.param({"seed": -1}, Fan(3), "seed", [-1, 0, 1], id="a negative seed counts up"),
    pytest.param({"seed": 2**64}, Fan(2), "seed", [2**64, 1], id="a seed out of range stays the client's in the first"),
    pytest.param({"seed": 42}, Fan(2, seed="same"), "seed", [42, 42], id="the same seed when asked"),
    pytest.param({"seed": 1.0}, Fan(2), "seed", [1.0, 2], id="a number without a fraction is a seed"),
    pytest.param({"seed": "7"}, Fan(2), "seed", ["7", "7"], id="a text is no seed to count from"),
    pytest.param({"seed": 1.5}, Fan(2), "seed", [1.5, 1.5], id="a fraction is no seed to count from"),
    pytest.param({"seed": True}, Fan(2), "seed", [True, True], id="a boolean is no seed to count from"),
    pytest.param({"seed": None}, Fan(2), "seed", [None, None], id="null is no seed"),
    pytest.param({}, Fan(2), "seed", ["absent", "absent"], id="no seed is added"),
    pytest.param({"sampling_seed": 5}, Fan(2), "sampling_seed", [5, 5], id="only seed is counted up"),
    pytest.param({"rid": "abc"}, Fan(3), "rid", ["abc", "abc-1", "abc-2"], id="each branch has its own rid"),
    pytest.param({"rid": ["a", "b"]}, Fan(2), "rid", ["absent", "absent"], id="a list of rids is left out"),
    pytest.param({"rid": None}, Fan(2), "rid", [None, None], id="a null rid stays"),
    pytest.param({"rid": "abc", "seed": 1}, Fan(3, copies=3), "rid", ["abc"], id="a copied answer is asked for once"),
]


@pytest.mark.parametrize(("body", "fan", "name", "values"), CASES)
def test_branches(body, fan, name, values):
    branches = branch_bodies(Body.of({"model": "m", **body}), fan)
    assert json.dumps([branch.get(name, "absent") for branch in branches]) == json.dumps(values)
    assert all(branch["model"] == "m" for branch in branches)


def test_other_fields_stay_byte_for_byte():
    source = b'{ "messages" : [ {"content":"\\u00e9"} ], "top_p":0.10, "seed":1}'
    body = Body.parse(source)
    assert body is not None
    second = branch_bodies(body, Fan(2))[1].encode()
    assert second == b'{"messages":[ {"content":"\\u00e9"} ],"top_p":0.10,"seed":2}'
    assert body.encode() == source


@given(seed=st.integers(-(2**63), GREATEST), n=st.integers(2, 40))
def test_seeds_are_in_range_and_all_different(seed, n):
    seeds = [branch["seed"] for branch in branch_bodies(Body.of({"seed": seed}), Fan(n))]
    assert len(set(seeds)) == n
    assert all(-(2**63) <= each <= GREATEST for each in seeds)


@given(rid=st.text(max_size=5), n=st.integers(2, 12))
def test_rids_are_all_different(rid, n):
    assert len({branch["rid"] for branch in branch_bodies(Body.of({"rid": rid}), Fan(n))}) == n
