"""Plays a script on a stage: one exchange after the other, each with its client, its backend and what is expected."""

import asyncio
import json
from dataclasses import dataclass

from structlog.testing import capture_logs

from tests.cases.runner.backend import ScriptedBackend
from tests.cases.runner.client import ScriptedClient
from tests.cases.runner.statements import check


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one exchange."""

    client: ScriptedClient
    backend: ScriptedBackend
    logs: list
    metrics: str


async def play(stage, script):
    """Play the script and check what came of each exchange. Raises: AssertionError."""
    await stage.proxy(policy_text(script.policy), **script.environ)
    wire = None
    for exchange in script.exchanges:
        written = exchange["client"]
        client = ScriptedClient(stage, written, wire if written.get("connection") == "same" else None)
        backend = ScriptedBackend(stage.backend, exchange.get("backend", []), client)
        with capture_logs() as logs:
            await _exchange(stage, client, backend)
        outcome = Outcome(client, backend, logs, stage.data_port.metrics.text().decode())
        check(outcome, exchange["expect"])
        _check_nothing_is_left(stage)
        wire = client.wire


async def _exchange(stage, client, backend):
    await client.connect()
    try:
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(backend.serve(group))
            await client.run(backend)
            await stage.data_port.serves(0)
            await backend.finish()
            listening.cancel()
    except BaseExceptionGroup as failed:
        first = failed.exceptions[0]
        first.add_note(
            f"the client had received {client.heard[-2000:]!r}, {len(backend.sent)} requests had gone upstream"
        )
        raise first from None


def _check_nothing_is_left(stage):
    assert stage.data_port.upstream.busy == 0, "a connection to the backend is still in use"
    assert stage.data_port.reserve.held_bytes == 0, "bytes are still counted as held"


def policy_text(written):
    """Return a policy's text; of one that is given as values, version and backend may be left out."""
    if isinstance(written, str):
        return written
    return json.dumps({"version": 1, "backends": {"main": {"url": "${BACKEND}"}}, "rules": []} | written)
