"""What is measured: each scenario's load, how long a slice of it takes, and what one unit of its work is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

META_INFO: dict[str, Any] = {"return_meta_info": True}
DROPPED = "meta_info=no"


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients send, and what a whole answer is. Units: `gap_us` lies between two events."""

    body: bytes
    connections: int
    stamps: int = 1
    gap_us: int = 0
    events: int = 1
    choices: int = 1
    text: str = ""
    is_stream: bool = False
    ramp_ms: int = 0

    def flags(self) -> list[str]:
        """Return the load generator's flags, but for where it goes and how long."""
        flags = ["-x", f"{self.events} {self.gap_us}", "-c", str(self.connections), "-r", str(self.ramp_ms)]
        flags += ["-e", str(self.stamps), "-n", str(self.choices)]
        return flags + (["-m", self.text] if self.text else []) + (["-s"] if self.is_stream else [])


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load and its measure. Who can't repair carries `plain` instead: the same work for the backend."""

    about: str
    load: Load
    plain: Load
    unit: str = "answer"  # of rate and CPU time
    time: str = "answer"  # which of the generator's times is told: `answer`, `first` or `event`
    seconds: float = 0.25
    is_for_workers: bool = False


def chat(size_bytes: int, **fields: Any) -> bytes:
    """Return a chat request of about this size, its messages first, as the OpenAI clients write them."""
    text = 'What does "été" mean?\nSay it with other words, please. '
    turns = max(1, size_bytes // 2048)
    part = (text * (max(0, size_bytes - 300) // turns // len(json.dumps(text)) + 1))[: max(1, size_bytes // turns)]
    messages = [{"role": "user" if turn % 2 == 0 else "assistant", "content": part} for turn in range(turns)]
    return json.dumps({"messages": messages, "model": "mock", "max_tokens": 256, "temperature": 0.2, **fields}).encode()


def stream(connections: int, events: int, gap_us: int, *, n: int = 1, ramp_ms: int = 0) -> Load:
    """Return clients that read event streams."""
    fields: dict[str, Any] = {"stream": True} | ({"n": n} if n > 1 else {})
    body = chat(1024, **fields)
    return Load(body, connections, events * n, gap_us, events, n, is_stream=True, ramp_ms=ramp_ms)


def scenarios() -> dict[str, Scenario]:
    """Return all scenarios that are measured in rounds, by name."""
    paced, flood, one = stream(64, 40, 5000, ramp_ms=100), stream(16, 1000, 0), stream(1, 1, 0)
    small = Load(chat(1024), 64)
    exploded = Load(chat(1024, stream=True, **META_INFO), 64, is_stream=True)
    merged = stream(16, 40, 5000, n=4, ramp_ms=100)
    return {
        "json-1k": Scenario("1 KB of JSON, 64 connections, nothing to repair", small, small),
        "json-1k-drop": _dropped("1 KB of JSON, 64 connections, a field to drop", 1024, 64),
        "json-32k-drop": _dropped("32 KB of JSON, 16 connections, a field to drop", 32 * 1024, 16),
        "json-1m-drop": _dropped("1 MB of JSON, 4 connections, a field to drop", 1024 * 1024, 4, 0.5),
        "sse-paced": Scenario("64 streams, an event every 5 ms", paced, paced, "event", "event", 0.4),
        "sse-flood": Scenario("16 streams, as fast as they go", flood, flood, "event", "event"),
        "first-event": Scenario("one client, the time to the first event", one, one, time="first"),
        "merge-4": Scenario(
            "16 clients ask n=4, an event every 5 ms; others: 64 plain streams", merged, paced, "event", "event", 0.4
        ),
        "explode": Scenario("64 clients stream, the backend says JSON; others: JSON", exploded, small),
        "workers": Scenario("1 KB of JSON, 64 connections, one worker and two", small, small, is_for_workers=True),
    }


def _dropped(about: str, size_bytes: int, connections: int, seconds: float = 0.25) -> Scenario:
    body = chat(size_bytes, **META_INFO)
    return Scenario(about, Load(body, connections, text=DROPPED), Load(body, connections), seconds=seconds)


QUICK = ("json-1k", "json-1k-drop", "sse-paced", "first-event", "merge-4")
MEMORY = "memory"
