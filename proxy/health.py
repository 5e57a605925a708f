"""Whether each backend is believed up: from the traffic, and where that says nothing new, from a cheap look.

The look is `GET /v1/models`, which makes no engine generate anything. `/health` of sglang would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import msgspec

from proxy.errors import BackendFault
from proxy.policy import Backend, Policy
from proxy.upstream import Call, Upstream

# A belief is as good as new for this long, so that probes by the second cost the backend one request in five.
FRESH_S = 5.0
LOOK_S = 2.0


class Belief(msgspec.Struct, frozen=True):
    """What is believed of a backend, why, and since when on the monotonic clock, which all processes share.

    A struct, since one is made for each answer: a frozen dataclass takes five times as long to make.
    """

    is_up: bool
    why: str
    at_s: float


class Health:
    """Holds the beliefs. Traffic notes them; readiness asks for them."""

    def __init__(self) -> None:
        self.known: dict[str, Belief] = {}

    def note(self, backend: str, outcome: BackendFault | int | None) -> None:
        """Note how a request to a backend went: an answer with some status came, or none did."""
        fault = outcome if isinstance(outcome, BackendFault) else None
        self.known[backend] = Belief(fault is None, fault.message if fault else "answers", time.monotonic())

    async def look(
        self, backends: Iterable[Backend], upstream: Upstream, address: Callable[[Backend], str]
    ) -> dict[str, Belief]:
        """Return what is believed of each backend, looking where the last news of it is old."""
        for backend in backends:
            if not is_fresh(self.known.get(backend.name)):
                await _look(backend, upstream, address(backend))
        return self.known


def is_fresh(belief: Belief | None) -> bool:
    """Return whether a belief is as good as new."""
    return belief is not None and time.monotonic() - belief.at_s <= FRESH_S


def newest(known: Iterable[Mapping[str, Belief]]) -> dict[str, Belief]:
    """Return the latest that any process knows of each backend."""
    latest: dict[str, Belief] = {}
    for beliefs in known:
        for name, belief in beliefs.items():
            if name not in latest or latest[name].at_s < belief.at_s:
                latest[name] = belief
    return latest


def of_policy(policy: Policy, known: Mapping[str, Belief]) -> dict[str, Belief]:
    """Return the beliefs of a policy's backends, in its order."""
    unknown = Belief(is_up=False, why="no news yet", at_s=0.0)
    return {backend.name: known.get(backend.name, unknown) for backend in policy.backends}


async def _look(backend: Backend, upstream: Upstream, base: str) -> None:
    credentials = [("Authorization", f"Bearer {backend.api_key}")] if backend.api_key else []
    call = Call("GET", "/v1/models", [("Accept", "application/json"), *credentials], None)
    # A look waits neither for a slot behind the traffic nor as long as an answer may take.
    timeouts = replace(backend.timeouts, connect_s=LOOK_S, first_content_s=LOOK_S)
    try:
        async with upstream.send(replace(backend, max_concurrency=0, timeouts=timeouts), base, call):
            return
    except BackendFault:
        # send() has noted it.
        return
