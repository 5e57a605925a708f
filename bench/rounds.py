"""Runs the scenarios: all candidates stand in front of one backend, and short slices of load visit them in turn.

compile mock and load ─► start all ─► rounds (scenarios and candidates in random order) ─► memory ─► end all
"""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.candidates import DIRECT, PRODUCT, WORKERS, Address, Contender
from bench.processes import Processes, cpu_ns, free_port, memory_bytes
from bench.scenarios import Load, Scenario, stream
from bench.stats import Slice

READY_WITHIN_S = 30.0
# What is still to be written to a log when the last answer is whole.
SETTLE_S = 0.03
WARM_SHARE = 0.2
STREAMS = 500
# The generator lets answers run on for 3 s; by this time each stream has had an event, and none has ended.
OPEN_AFTER_S = 2.8

Slices = dict[str, dict[str, list[Slice]]]
"""By scenario and candidate, in the order of the rounds."""


class CannotMeasure(Exception):
    """Something that is needed is missing, or does not run."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A contender that runs."""

    name: str
    port: int
    pid: int
    is_repairing: bool


def compiled(name: str, folder: Path) -> Path:
    """Return the program that is made of a C source beside this file. Raises: CannotMeasure without a C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise CannotMeasure("There is no C compiler: install gcc or clang, or name one in CC.")
    source, program = Path(__file__).parent / f"{name}.c", folder / name
    command = [compiler, "-O2", "-o", str(program), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 the command is our own
    if done.returncode:
        raise CannotMeasure(f"{' '.join(command)} failed:\n{done.stderr}")
    return program


class Bench:
    """The backend, the candidates that run, and the load that is put on them."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        """Compile the programs and start the backend. Raises: CannotMeasure."""
        self._folder, self._processes = folder, processes
        cpus = sorted(os.sched_getaffinity(0))
        self._cpus, self._own_cpus, self._load_cpus = set(cpus), {cpus[0]}, {cpus[-1]}
        self._mock, self._load = compiled("mock", folder), compiled("load", folder)
        port = free_port()
        pid = processes.start(DIRECT, [str(self._mock), str(port)], self._load_cpus)
        self.direct = Candidate(DIRECT, port, pid, is_repairing=False)
        self._wait_ready(self.direct)

    def start(self, contender: Contender) -> Candidate:
        """Return a contender that serves. Raises: CannotMeasure."""
        at = Address(self._folder, free_port(), free_port(), self.direct.port)
        cpus = self._cpus if contender.name == WORKERS else self._own_cpus
        pid = self._processes.start(contender.name, contender.command(at), cpus)
        candidate = Candidate(contender.name, at.port, pid, contender.is_repairing)
        self._wait_ready(candidate)
        return candidate

    def _wait_ready(self, candidate: Candidate) -> None:
        deadline_s = time.monotonic() + READY_WITHIN_S
        while not _answers(candidate.port):
            is_running = self._processes.is_running(candidate.pid)
            if not is_running or time.monotonic() > deadline_s:
                how = "does not serve" if is_running else "has ended"
                raise CannotMeasure(f"{candidate.name} {how}; it said:\n{self._processes.said(candidate.name)}")
            time.sleep(0.05)

    def put(self, candidate: Candidate, load: Load, seconds: float, warm_s: float = 0.0) -> int:
        """Return the id of a generator that loads a candidate."""
        body = self._folder / "body.json"
        body.write_bytes(load.body)
        command = [str(self._load), "-p", str(candidate.port), "-b", str(body), "-t", str(seconds), "-w", str(warm_s)]
        return self._processes.start(f"load {candidate.name}", command + load.flags(), self._load_cpus)

    def result(self, candidate: Candidate, pid: int, patience_s: float) -> dict[str, Any]:
        """Return what a generator measured. Raises: CannotMeasure."""
        code = self._processes.wait(pid, patience_s)
        said = self._processes.said(f"load {candidate.name}")
        if code:
            raise CannotMeasure(f"The load on {candidate.name} ended with {code}: {said}")
        complaint, _, numbers = said.rpartition('{"begun"')
        measured: dict[str, Any] = json.loads('{"begun"' + numbers)
        return measured | {"complaint": complaint.strip()}

    def slice(self, candidate: Candidate, scenario: Scenario, number: int) -> tuple[Slice, str]:
        """Return what a candidate did in one round, and what was wrong with its first bad answer."""
        load = scenario.load if candidate.is_repairing else scenario.plain
        before_ns = cpu_ns(candidate.pid)
        pid = self.put(candidate, load, scenario.seconds, scenario.seconds * WARM_SHARE)
        said = self.result(candidate, pid, scenario.seconds + 10)
        time.sleep(SETTLE_S)
        spent_us = (cpu_ns(candidate.pid) - before_ns) / 1000
        rate, work = ("events_a_s", "events") if scenario.unit == "event" else ("answers_a_s", "whole")
        p50_us, p99_us = said[f"{scenario.time}_p50"], said[f"{scenario.time}_p99"]
        cost_us = spent_us / max(1, said[work])
        return Slice(number, said[rate], cost_us, p50_us, p99_us, said["whole"], said["bad"]), said["complaint"]

    def memory(self, field: Sequence[Contender]) -> dict[str, tuple[float, float]]:
        """Return each contender's resident memory, started afresh, and what each open stream adds. Units: KiB."""
        fresh = [self.start(contender) for contender in field]
        for candidate in fresh:
            self.result(candidate, self.put(candidate, stream(8, 20, 0), 0.2), 10)
        before = [memory_bytes(candidate.pid) for candidate in fresh]
        held = stream(STREAMS, 1000, 1_000_000, ramp_ms=1500)
        loads = [self.put(candidate, held, 0.1) for candidate in fresh]
        time.sleep(OPEN_AFTER_S)
        after = [memory_bytes(candidate.pid) for candidate in fresh]
        said = [self.result(candidate, load, 10) for candidate, load in zip(fresh, loads, strict=True)]
        return {
            candidate.name: (base / 1024, (full - base) / 1024 / STREAMS)
            for candidate, base, full, one in zip(fresh, before, after, said, strict=True)
            if one["events"] >= STREAMS  # else not all of them were open
        }


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v1/models")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def takers(field: Sequence[Candidate], scenario: Scenario) -> list[Candidate]:
    """Return who takes part in a scenario."""
    if scenario.is_for_workers:
        return [one for one in field if one.name in (PRODUCT, WORKERS)]
    return [one for one in field if one.name != WORKERS]


def measure(
    bench: Bench, field: Sequence[Candidate], chosen: dict[str, Scenario], deadline_s: float
) -> Iterator[tuple[str, str, Slice, str]]:
    """Yield (scenario, candidate, slice, complaint) in rounds, until there is no time for another scenario."""
    took_s: dict[str, float] = {}
    number = 0
    while True:
        number += 1
        for name in random.sample(list(chosen), len(chosen)):
            scenario = chosen[name]
            running = takers(field, scenario)
            began_s = time.monotonic()
            if began_s + took_s.get(name, len(running) * (scenario.seconds + 0.5)) > deadline_s:
                return
            for candidate in random.sample(running, len(running)):
                yield name, candidate.name, *bench.slice(candidate, scenario, number)
            took_s[name] = time.monotonic() - began_s
