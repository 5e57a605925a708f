"""The preset openai-errors alone, on what four real servers refuse: which rows of their catalogues it repairs.

`pytest -s tests/test_openai_errors.py -k table` prints the table. Its cases are in tests/presets/openai-errors.yaml.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.engine import Plan, Request, plan, replan
from proxy.life import LifeSign
from proxy.policy import load_policy
from proxy.refusals import READ_BYTES, Failure, failure_from, read_refusal

DATA = Path(__file__).parent / "data"
ROWS: dict[str, list[dict[str, Any]]] = yaml.safe_load((DATA / "refusals" / "rows.yaml").read_text("utf-8"))
POLICY = load_policy(
    "policy.yaml",
    text="version: 1\nbackends: {b: {url: http://backend.invalid, presets: [openai-errors]}}\n",
    environ={},
)
RULES = POLICY.backends[0].rules
CHAT = "/v1/chat/completions"
KINDS = ("repaired", "passed on", "impossible", "silent")
EXCHANGE = re.compile(
    r"### (?P<method>\w+) (?P<path>\S+)\n(?:# .*\n)*(?P<body>.*?)\n### curl -i -N\n"
    r"HTTP/1\.1 (?P<status>\d+)(?P<rest>.*?)### curl exit",
    re.DOTALL,
)


@dataclass(frozen=True)
class Met:
    """What a server was asked, and how it refused."""

    request: Request
    failure: Failure

    def repaired(self) -> Plan | None:
        """Return the plan after the refusal."""
        return replan(plan(self.request, POLICY), self.failure, POLICY)


def recorded(server: str, name: str) -> Met:
    found = [file for folder in ("transcripts", "refusals") for file in (DATA / folder / server).glob(f"{name}.txt")]
    exchange = EXCHANGE.match(found[0].read_text("utf-8"))
    assert exchange is not None, name
    request = Request(exchange["method"], exchange["path"], "", (), exchange["body"].encode())
    return Met(request, failure_of(int(exchange["status"]), exchange["rest"].partition("\n\n")[2].encode()))


def failure_of(status: int, answer: bytes) -> Failure:
    if status >= 400:
        return read_refusal(status, answer)
    sign = LifeSign()
    sign.feed(answer)
    sign.close()
    assert not sign.is_alive, "no refusal was recorded"
    return failure_from(sign.fault, "error") if sign.fault is not None else Failure(None, stream="empty")


def told(row: dict[str, Any]) -> Met:
    """Return a row that the server at hand couldn't show: its text is from the server's source."""
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | row["asked"]
    path = asked.pop("PATH", CHAT)
    said = json.dumps({"object": "error", "message": row["said"], "code": row["status"]})
    return Met(Request("POST", path, "", (), json.dumps(asked).encode()), read_refusal(row["status"], said.encode()))


def refusals_of(server: str, row: dict[str, Any]) -> list[Met]:
    return [recorded(server, name) for name in row["recorded"]] if "recorded" in row else [told(row)]


def kind_of(server: str, row: dict[str, Any]) -> str:
    """Return what becomes of a row: it is repaired where each of its refusals is."""
    if row.get("silent"):
        return "silent"
    plans = [met.repaired() for met in refusals_of(server, row)]
    if all(made is not None and made.refusal is None and made.bodies for made in plans):
        return "repaired"
    return "impossible" if row.get("impossible") else "passed on"


CASES = [
    pytest.param(server, row, id=f"{server}: {row['row']}") for server, all_rows in ROWS.items() for row in all_rows
]


@pytest.mark.parametrize(("server", "row"), CASES)
def test_a_row_of_the_catalogue_is_repaired_or_not_as_noted(server: str, row: dict[str, Any]) -> None:
    assert (kind_of(server, row) == "repaired") is row.get("repaired", False)


def test_what_is_impossible_is_never_taken_for_repaired() -> None:
    pretended = [row for all_rows in ROWS.values() for row in all_rows if {"impossible", "repaired"} <= row.keys()]
    assert pretended == []


def test_the_table_of_four_servers_is_told() -> None:
    counts = {server: Counter(kind_of(server, row) for row in all_rows) for server, all_rows in ROWS.items()}
    sys.stdout.write("\n".join(table(counts)) + "\n")
    assert all(count["repaired"] > 0 for count in counts.values())


def table(counts: dict[str, Counter[str]]) -> Iterator[str]:
    yield ""
    yield (
        f"{'rows of':20}{'all':>6}"
        + "".join(f"{kind:>12}" for kind in KINDS)
        + f"{'of refused':>12}{'of possible':>13}"
    )
    for name, count in (counts | {"all four": sum(counts.values(), Counter())}).items():
        refused = count.total() - count["silent"]
        shares = f"{count['repaired'] / refused:>12.0%}{count['repaired'] / (refused - count['impossible']):>13.0%}"
        yield f"{name:20}{count.total():>6}" + "".join(f"{count[kind]:>12}" for kind in KINDS) + shares


PIECES = ["Unexpected fields [", "Unknown parameter: '", "0", "'", "\n", "a.", "x must be in [0, 1", "messages.0."]


@pytest.mark.parametrize("piece", PIECES)
def test_no_text_keeps_the_rules_busy(piece: str) -> None:
    text = (piece * READ_BYTES)[:READ_BYTES]
    began = time.process_time()
    for rule in RULES:
        assert rule.on_error is not None, "every rule of this preset reacts"
        for pattern in (rule.on_error.message, rule.on_error.each):
            assert pattern is None or len(pattern.findall(text)) <= READ_BYTES
    assert time.process_time() - began < 5


KEPT = ["model", "messages", "prompt", "input", "api_key", "authorization", "access_token", "previous_response_id"]
DIALECTS = [
    "Unexpected fields in the request: {{'{field}'}}",
    "[{{'type': 'extra_forbidden', 'loc': ('body', '{field}'), 'msg': 'Extra inputs are not permitted', 'input': 1}}]",
    "{field}: Extra inputs are not permitted",
    "Extra inputs are not permitted, field: '{field}'",
    "Unknown parameter: '{field}'.",
    "Unsupported parameter: {field}",
    "unknown field `{field}`, expected one of `a`",
    'json: unknown field "{field}"',
    "Unrecognized request argument supplied: {field}",
    "property '{field}' is unsupported",
    "{field} is not supported",
    "`{field}` is not supported with this model",
    "This model doesn't support the {field} field.",
    "Argument not supported on this model: {field}",
    "'{field}' is only allowed when 'x' is enabled.",
]


def upstream(text: str, **fields: Any) -> dict[str, Any] | None:
    """Return the body that follows a refusal; None where it is passed on."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields
    request = Request("POST", CHAT, "", (), json.dumps(body).encode())
    made = Met(request, read_refusal(400, json.dumps({"error": {"message": text}}).encode())).repaired()
    return json.loads(made.bodies[0]) if made is not None else None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_field_that_is_unknown_goes_in_every_dialect(dialect: str) -> None:
    body = upstream(dialect.format(field="some_field"), some_field=1)
    assert body is not None
    assert "some_field" not in body


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("field", KEPT)
def test_what_a_request_is_about_stays_in_every_dialect(dialect: str, field: str) -> None:
    fields = {name: "x" for name in KEPT if name not in ("model", "messages")}
    assert upstream(dialect.format(field=field), **fields) is None
