"""Starts, weighs and ends the processes of a run: each by its id, each on 127.0.0.1, its output in a file."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE_S = 2.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Processes:
    """The processes of one run; the end of the block is theirs too."""

    def __init__(self, folder: Path) -> None:
        """Keep what they say in `folder`."""
        self._folder = folder
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(*self._running)

    def start(self, name: str, command: Sequence[str], cpus: Collection[int]) -> int:
        """Return the id of a new process, which runs on these CPUs only."""
        with (self._folder / f"{name}.log").open("wb") as said:
            process = subprocess.Popen(  # noqa: S603 the command is the benchmark's own, or was given to it
                list(command), stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        self._running[process.pid] = process
        os.sched_setaffinity(process.pid, cpus)
        # Linux shares the CPU out by session first. Only the superuser may ask for more: others get more noise.
        with suppress(OSError):
            Path(f"/proc/{process.pid}/autogroup").write_text("-10")
        return process.pid

    def said(self, name: str) -> str:
        """Return the end of what a process said."""
        return (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]

    def wait(self, pid: int, patience_s: float) -> int:
        """Return a process's exit code. Raises: TimeoutExpired."""
        code = self._running[pid].wait(patience_s)
        del self._running[pid]
        return code

    def is_running(self, pid: int) -> bool:
        """Return whether a process has not ended yet."""
        return self._running[pid].poll() is None

    def stop(self, *pids: int) -> None:
        """End processes and their children: all are asked at once, and killed when they do not hear."""
        ending = [(self._running.pop(pid), _family(pid)) for pid in pids]
        for process, _ in ending:
            if process.poll() is None:
                process.terminate()
        for process, family in ending:
            _see_off(process)
            for child in family[1:]:
                # A child that has ended with its parent is what is hoped for.
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)


def _see_off(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process, its threads and its children that still run. Source: proc(5), schedstat."""
    tasks = [task for member in _family(pid) for task in Path(f"/proc/{member}/task").glob("*/schedstat")]
    return sum(int(task.read_text().split()[0]) for task in tasks)


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process and its children. Source: proc(5), statm."""
    return sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) * PAGE_BYTES for one in _family(pid))


def _family(pid: int) -> list[int]:
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [pid, *(member for text in lists for child in text.split() for member in _family(int(child)))]


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on, and that no outgoing connection is given in the meantime."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(10_000, max(first_given, 20_000)), 1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port of 127.0.0.1 is free")
