"""Whether each backend is believed up: from the traffic, and where that says nothing new, from a cheap look.

The look is `GET /v1/models`, which makes no engine generate anything. `/health` of sglang would.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from proxy.errors import BackendFault
from proxy.policy import Backend
from proxy.upstream import Call, Upstream

# A belief is as good as new for this long, so that probes by the second cost the backend one request in five.
FRESH_S = 5.0
LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of a backend, why, and since when on the monotonic clock."""

    is_up: bool
    why: str
    at_s: float


class Health:
    """Holds the beliefs. Traffic notes them; readiness asks for them."""

    def __init__(self) -> None:
        self._beliefs: dict[str, Belief] = {}

    def note(self, backend: str, outcome: BackendFault | int | None) -> None:
        """Note how a request to a backend went: an answer with some status came, or none did."""
        fault = outcome if isinstance(outcome, BackendFault) else None
        self._beliefs[backend] = Belief(fault is None, fault.message if fault else "answers", time.monotonic())

    async def belief(self, backend: Backend, upstream: Upstream, address: Callable[[Backend], str]) -> Belief:
        """Return what is believed of a backend, looking when the last news of it is old."""
        known = self._beliefs.get(backend.name)
        if known is None or time.monotonic() - known.at_s > FRESH_S:
            await _look(backend, upstream, address(backend))
            known = self._beliefs.get(backend.name, known)
        return known or Belief(False, "no news yet", time.monotonic())


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
