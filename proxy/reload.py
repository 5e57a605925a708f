"""A new policy for a running process: when its file changes, or on SIGHUP. A faulty one is told, and the old one kept.

The file is looked at, not watched: a plain write, a rename over it and a ConfigMap's swapped link all show in what
`stat` says of the path, on every file system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from proxy.errors import PolicyFault
from proxy.policy import Policy
from proxy.server import DataPort

LOOK_EVERY_S = 1.0

log = structlog.get_logger("mendproxy")

Signature = tuple[int, int, int]


@dataclass(slots=True)
class Status:
    """What the life of the process has to say of itself."""

    is_draining: bool = False
    last_reload_faults: int = 0


class Reloader:
    """Loads the policy anew and puts it to use."""

    def __init__(
        self,
        path: Path,
        load: Callable[[], Policy],
        port: DataPort,
        prepare: Callable[[Policy], Awaitable[None]],
        status: Status,
    ) -> None:
        """Reload for `port` by `load`; `prepare` is awaited before a policy is used."""
        self._path = path
        self._load = load
        self._port = port
        self._prepare = prepare
        self._status = status

    async def reload(self) -> None:
        """Put the file's policy to use, or tell why not."""
        try:
            policy = self._load()
        except PolicyFault as error:
            for fault in error.faults:
                log.error("policy.fault", fault=str(fault))
            self._keep(len(error.faults))
            return
        except OSError as error:
            log.error("policy.unreadable", file=str(self._path), error=error.strerror)
            self._keep(1)
            return
        await self._prepare(policy)
        self._port.use(policy)
        self._status.last_reload_faults = 0
        log.info("policy.reloaded", sha256=policy.sha256[:12])

    def _keep(self, faults: int) -> None:
        self._status.last_reload_faults = faults
        self._port.metrics.reloaded(None)
        log.error("policy.kept", sha256=self._port.policy.sha256[:12])

    async def watch(self, every_s: float = LOOK_EVERY_S) -> None:
        """Reload whenever the file has changed and is still so at the next look, since a write takes its time."""
        used = seen = signature_of(self._path)
        while True:
            await asyncio.sleep(every_s)
            now = signature_of(self._path)
            if now is not None and now == seen and now != used:
                used = now
                await self.reload()
            seen = now


def signature_of(path: Path) -> Signature | None:
    """Return what tells a file's content from another; None where there is none, as in the middle of a swap."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
