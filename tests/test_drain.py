"""SIGTERM while clients go on asking: what had begun is finished, nobody is turned away before the grace is over."""

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime

import aiohttp
import pytest

POLICY = "version: 1\nbackends: {main: {url: standin://sglang}}\n"
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
PACE = {"x-standin-pace-ms": "3"}
GRACE_S = 0.7
# A connection that is still to be accepted when the listener closes is the kernel's, and is reset.
ACCEPTED_S = 0.15
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Outcome:
    """What became of a request: its status, or how its connection failed before any of an answer came."""

    begun_s: float
    what: int | str


class Asking:
    """A client that asks until it is turned away; on a connection of its own each time, or on one that is kept."""

    def __init__(self, url, *, is_kept):
        self._url = url
        self._is_kept = is_kept
        self.outcomes = []

    async def run(self):
        async with aiohttp.ClientSession(
            self._url, connector=aiohttp.TCPConnector(force_close=not self._is_kept)
        ) as one:
            while not self.outcomes or self.outcomes[-1].what == 200:
                begun_s = time.time()
                self.outcomes.append(Outcome(begun_s, await self._ask(one)))

    async def _ask(self, session):
        try:
            async with session.post("/v1/chat/completions", json=ASKED, headers=PACE) as answer:
                # An answer that has begun is whole, or this raises.
                assert await answer.json()
                return answer.status
        except aiohttp.ClientConnectorError:
            return "refused"
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return "gone"


def seconds(line):
    return datetime.fromisoformat(line["timestamp"]).timestamp()


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_no_request_is_lost_and_none_refused_before_its_time(serving, tmp_path, workers):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    with serving(policy, "--workers", workers, "--drain-grace", f"{GRACE_S}s") as proxy:
        clients = [Asking(proxy.url, is_kept=number % 2 == 0) for number in range(6)]
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.run())
            for _ in range(10):  # they are at it
                await asyncio.to_thread(proxy.until, "request")
            proxy.send_signal("SIGTERM")
        code = await asyncio.to_thread(proxy.exit_code)
        closed_s = seconds(proxy.until("listener.closed"))
    assert code == 0
    outcomes = [outcome for client in clients for outcome in client.outcomes]
    early = [outcome.what for outcome in outcomes if outcome.begun_s < closed_s - ACCEPTED_S]
    assert len(early) > 20
    assert set(early) == {200}
    assert {client.outcomes[-1].what for client in clients} <= {"refused", "gone", 503}
