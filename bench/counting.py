"""Counts the calls that the proxy makes, of Python functions and of C ones, for one request and for one event.

`python -m bench.counting` prints the numbers as JSON. It is run in a process of its own (bench.drift does it): the
proxy serves in the main thread, whose calls are counted, and both of its ends are played in another, which are not.
The event loop is asyncio's own: its calls are seen, uvloop's are not, and uvloop is not installed everywhere.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from bench.candidates import RULES
from bench.ends import HOST, Ends
from bench.processes import free_port
from bench.scenarios import META_INFO, chat
from proxy import cli, engine
from proxy.engine import Request
from proxy.policy import load_policy

REQUESTS, EVENTS, WARM = 100, 200, 20


class Counter:
    """Counts the calls of the thread that it is on."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.calls += 1

    def settled(self, pause_s: float = 0.005) -> int:
        """Return how many calls there were, once no more come: the proxy has done all that it had to."""
        seen, same = self.calls, 0
        while same < 3:
            time.sleep(pause_s)
            same = same + 1 if self.calls == seen else 0
            seen = self.calls
        return seen

    def pause(self) -> None:
        """Wait until the proxy waits, so that what comes next comes in a turn of its event loop of its own."""
        self.settled(0.0002)


def planned() -> dict[str, float]:
    """Return the calls of one plan."""
    policy = load_policy("policy.yaml", environ={}, text=RULES)
    said = (("Host", "proxy"), ("Content-Type", "application/json"))

    def request(**fields: Any) -> Request:
        return Request("POST", "/v1/chat/completions", "", said, chat(1024, **fields))

    def calls(one: Request) -> float:
        return _of_main_thread(lambda: [engine.plan(one, policy) for _ in range(REQUESTS)]) / REQUESTS

    for warm in (request(), request(**META_INFO)):
        engine.plan(warm, policy)
    return {"plan, untouched": calls(request()), "plan, a field dropped": calls(request(**META_INFO))}


def _of_main_thread(work: Callable[[], object]) -> int:
    counter = Counter()
    sys.setprofile(counter)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counter.calls


def served() -> dict[str, float]:
    """Return the calls of one request and of one event, through the whole proxy."""
    port, result, faults = free_port(), {}, []
    counter, is_over = Counter(), threading.Event()

    def play(ends: Ends) -> None:
        try:
            _dial(ends, port, is_over)
            result.update(_played(ends, counter))
        except (OSError, RuntimeError) as fault:
            faults.append(fault)
        if not is_over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    with Ends(counter.pause) as ends, tempfile.TemporaryDirectory() as folder:
        policy = Path(folder, "policy.yaml")
        policy.write_text(RULES)
        flags = ["-c", str(policy), "--backend", f"http://{HOST}:{ends.backend_port}", "--port", str(port)]
        player = threading.Thread(target=play, args=[ends])
        player.start()
        sys.setprofile(counter)
        try:
            cli.main(["serve", *flags, "--admin-port", "0", "--drain-grace", "0s"], standalone_mode=False)
        finally:
            sys.setprofile(None)
            is_over.set()
            player.join()
    if faults:
        raise faults[0]
    return result


def _dial(ends: Ends, port: int, is_over: threading.Event) -> None:
    while not is_over.is_set():
        try:
            return ends.dial(port)
        except ConnectionRefusedError:
            time.sleep(0.02)
    raise RuntimeError("The proxy ended before it served.")


def _played(ends: Ends, counter: Counter) -> dict[str, float]:
    plain, dropped = chat(1024), chat(1024, **META_INFO)
    streamed, merged = chat(1024, stream=True), chat(1024, stream=True, n=4)
    exploded = chat(1024, stream=True, **META_INFO)
    return {
        "request, untouched": _a_request(counter, lambda: ends.json(plain)),
        "request, a field dropped": _a_request(counter, lambda: ends.json(dropped)),
        "request, exploded": _a_request(counter, lambda: ends.exploded(exploded)),
        "request, a stream of one event": _a_request(counter, lambda: ends.stream(streamed, 1)),
        "event, relayed": _an_event(counter, lambda events: ends.stream(streamed, events)),
        "event, merged of 4 branches": _an_event(counter, lambda events: ends.stream(merged, events, branches=4)),
    }


def _a_request(counter: Counter, ask: Callable[[], None]) -> float:
    for _ in range(WARM):
        ask()
    before = counter.settled()
    for _ in range(REQUESTS):
        ask()
    return (counter.settled() - before) / REQUESTS


def _an_event(counter: Counter, ask: Callable[[int], None]) -> float:
    """Return what an event adds: a long stream less a short one, so that the request itself is not in it."""
    for _ in range(WARM):
        ask(1)
    counts = [counter.settled()]
    for events in (WARM, WARM + EVENTS):
        ask(events)
        counts.append(counter.settled())
    start, short, long = counts
    return ((long - short) - (short - start)) / EVENTS


if __name__ == "__main__":
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # so it counts as not installed
    gc.disable()  # when it runs, and what it then calls, is no work of the proxy's
    json.dump({name: round(calls, 1) for name, calls in (planned() | served()).items()}, sys.stdout)
