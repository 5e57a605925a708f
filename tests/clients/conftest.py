"""Clients under test: programs that ask the proxy, or the same backends directly, and tell what they were given.

test ── jobs ──► driver (a program, Python or Node) ──► the proxy ──► backends (a program)
     ◄ results ──                                  └──────────────────►
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATIENCE_S = 120
# What differs from one answer to the next.
OF_THE_MOMENT = ("id", "created")
# What sglang tells in whole answers only. A stream made of one has it too; an answer made of a stream can't.
OF_THE_SHAPE = ("metadata",)
JOINED = ("content", "text", "arguments", "reasoning_content", "refusal")


@pytest.fixture(scope="session")
def backends():
    """Return the addresses of the backends."""
    with subprocess.Popen(  # noqa: S603 the command is this test's own
        [sys.executable, str(HERE / "backends" / "serve.py")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield json.loads(process.stdout.readline())
        process.stdin.close()


@pytest.fixture(scope="session")
def proxy(backends, serving):
    """Return the proxy in front of the backends."""
    environ = {"SGLANG": backends["sglang"], "SCRIPTED": backends["scripted"]}
    with serving(HERE / "policy.yaml", environ=environ) as running:
        yield running


@pytest.fixture(scope="session")
def ask(backends, proxy):
    """Return what runs a driver with jobs, each with the place that it goes to in `at`, and gives the results."""

    addresses = backends | {"proxy": proxy.url}

    def run(driver, jobs):
        program = HERE / "drivers" / driver
        command = [sys.executable] if program.suffix == ".py" else ["node"]
        done = subprocess.run(  # noqa: S603 the command is this test's own
            [*command, str(program)],
            input=json.dumps([job | {"base_url": f"{addresses[job['at']]}/v1"} for job in jobs]),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def message_of():
    """Return what gives what a client was told, without what differs each time; the parts of a stream are joined."""

    def told(result, without=()):
        answer = _joined(result["chunks"]) if "chunks" in result else result.get("answer")
        return _plain(answer, (*OF_THE_SHAPE, *without))

    return told


def _plain(value, without):
    """Null and absent are the same to a program, and so are ids as long as there is one."""
    if isinstance(value, list):
        return [_plain(item, without) for item in value]
    if not isinstance(value, dict):
        return value
    told = {key: item for key, item in value.items() if item is not None and key not in without}
    if "tool_calls" in told:
        told["tool_calls"] = [_without(call, "index") for call in told["tool_calls"]]
    return {key: bool(item) if key in OF_THE_MOMENT else _plain(item, without) for key, item in told.items()}


def _without(value, key):
    return {name: item for name, item in value.items() if name != key}


def _joined(chunks):
    """Return the answer that chunks are of, joined as the API's reference says and by no client."""
    whole, choices = {}, {}
    for chunk in chunks:
        _join(whole, _without(chunk, "choices"))
        for choice in chunk["choices"]:
            _join(choices.setdefault(choice["index"], {}), choice)
    whole["object"] = whole.get("object", "").removesuffix(".chunk")
    return whole | {"choices": [_as_whole(choices[index]) for index in sorted(choices)]}


def _as_whole(choice):
    message = choice.get("delta")
    if message is None:
        return choice
    calls = message.get("tool_calls")
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return _without(choice, "delta") | {"message": message}


def _join(into, more):
    for key, value in more.items():
        if key == "tool_calls" and value:
            slots = into.setdefault(key, {})
            for call in value:
                _join(slots.setdefault(call["index"], {}), call)
        elif isinstance(value, dict):
            _join(into.setdefault(key, {}), value)
        elif isinstance(value, list):
            into.setdefault(key, []).extend(value)
        elif value is not None:
            into[key] = into.get(key, "") + value if key in JOINED else value
