"""A new policy for a running process: when its file changes, or on SIGHUP. A faulty one is told, and the old one kept.

The file is looked at, not watched: a plain write, a rename over it and a ConfigMap's swapped link all show in what
`stat` says of the path, on every file system. It is the only file to look at: a policy includes no other, and the
presets are part of the package.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from proxy import files
from proxy.errors import PolicyFault
from proxy.files import Signature
from proxy.options import Loaded
from proxy.policy import Policy

LOOK_EVERY_S = 1.0

log = structlog.get_logger("mendproxy")


@dataclass(slots=True)
class Status:
    """What the life of the process has to say of itself. `faults` are those of the last reload.

    Units: seconds since the epoch.
    """

    is_draining: bool = False
    faults: tuple[str, ...] = ()
    started_s: float = field(default_factory=time.time)
    loaded_s: float = field(default_factory=time.time)


class User(Protocol):
    """What works by the policy."""

    @property
    def policy(self) -> Policy:
        """The policy in force."""

    async def use(self, loaded: Loaded) -> None:
        """Work by another policy."""

    def keep(self) -> None:
        """Note that a reload has failed."""


class Reloader:
    """Loads the policy anew and has it put to use."""

    def __init__(
        self, path: Path, load: Callable[[], Loaded], user: User, status: Status, used: Signature | None
    ) -> None:
        """Reload by `load`; `used` is the signature of the file that the policy in force was read from."""
        self._path = path
        self._load = load
        self._user = user
        self._status = status
        self._one_at_a_time = asyncio.Lock()
        self._tried = used

    async def reload(self) -> None:
        """Put the file's policy to use, or tell why not."""
        async with self._one_at_a_time:
            await self._reload()

    async def _reload(self) -> None:
        self._tried = signature_of(self._path)
        try:
            # Many rules take their time, in which requests are served on.
            loaded = await asyncio.to_thread(self._load)
        except PolicyFault as error:
            for fault in error.faults:
                log.error("policy.fault", fault=str(fault))
            self._keep(*map(str, error.faults))
            return
        except OSError as error:
            log.error("policy.unreadable", file=str(self._path), error=error.strerror)
            self._keep(f"{self._path}: {error.strerror}")
            return
        await self._user.use(loaded)
        self._status.faults, self._status.loaded_s = (), time.time()
        log.info("policy.reloaded", sha256=loaded.policy.sha256[:12])

    def _keep(self, *faults: str) -> None:
        self._status.faults = faults
        self._user.keep()
        log.error("policy.kept", sha256=self._user.policy.sha256[:12])

    async def watch(self, every_s: float = LOOK_EVERY_S) -> None:
        """Reload whenever the file has changed and is still so at the next look, since a write takes its time."""
        seen = signature_of(self._path)
        while True:
            await asyncio.sleep(every_s)
            now = signature_of(self._path)
            if now is not None and now == seen and now != self._tried:
                await self.reload()
            seen = now


def signature_of(path: Path) -> Signature | None:
    """Return what tells a file's content from another; None where there is none, as in the middle of a swap."""
    try:
        return files.signature_of(path)
    except OSError:
        return None
