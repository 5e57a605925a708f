"""The file of what was learned, which several processes share: workers, replicas on one volume, and the operator.

    take changes ─► lock ─► read where it changed ─► merge ─► write whole ─► unlock ─► adopt
    nothing changed here ─► read where it changed ─► adopt

A file that can't be read is told once and not written over until it is good again; what is in memory stays meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from proxy.errors import PolicyFault
from proxy.files import Signature, is_whole, locked, signature_of
from proxy.learn import Changes, Lessons, merge
from proxy.lessons import Lesson, as_text, read_lessons

LOOK_EVERY_S = 0.5
# That rules were hit is no news worth a write each time; other processes would read the file again for it.
HITS_EVERY_S = 30.0

log = structlog.get_logger("mendproxy")

Kept = dict[str, Lesson]


class SharedLessons:
    """The file, as this process saw it last. One call at a time; they may block, and so run in a thread."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._kept: Kept = {}
        self._seen: Signature | None = None
        self._unsettled: Signature | None = None
        self._faulty: Signature | None = None
        self._is_loaded = False

    def sync(self, changes: Changes) -> Kept | None:
        """Merge changes into the file; return what it has then, None where nothing was done.

        Raises: PolicyFault, OSError; nothing is done then.
        """
        if changes.is_empty:
            return self._kept if self._read_anew() else None
        with locked(self._path) as lock:
            self._read_anew()
            if signature_of(self._path) != self._seen:
                return None
            self._kept = merge(self._kept, changes, self._clock())
            self._seen = lock.write(as_text(self._kept.values()))
        return self._kept

    def _read_anew(self) -> bool:
        """Return whether the file has changed; it is read then, unless it is faulty or being written."""
        now = signature_of(self._path)
        is_first, self._is_loaded = not self._is_loaded, True
        is_told_faulty = now is not None and now == self._faulty
        if now == self._seen or is_told_faulty or (not is_first and self._is_being_written(now)):
            return False
        try:
            self._kept = {lesson.rule.id: lesson for lesson in self._read()} if now is not None else {}
        except PolicyFault:
            self._faulty = now
            raise
        self._seen, self._faulty = now, None
        return True

    def _read(self) -> list[Lesson]:
        return read_lessons(self._path, self._kept)

    def _is_being_written(self, now: Signature | None) -> bool:
        """Return whether somebody may be at it by hand: such a file has to stay as it is for a look."""
        if now is None or now == self._unsettled or is_whole(self._path, now):
            return False
        self._unsettled = now
        return True


class Keeper:
    """Keeps one process's lessons and the file in step."""

    def __init__(self, lessons: Lessons, file: SharedLessons, adopted: Callable[[int], None]) -> None:
        """`adopted` is told how many lessons there are whenever others changed them."""
        self._lessons = lessons
        self._file = file
        self._adopted = adopted
        self._ending = asyncio.Event()
        self._has_last_look = True
        self._hits_due_s = time.monotonic() + HITS_EVERY_S
        self._told = ""

    def load(self) -> None:
        """Read the file, where there is one. Raises: PolicyFault, with every rule that can't be read, OSError."""
        self._adopt(self._file.sync(Changes()))

    async def run(self, every_s: float = LOOK_EVERY_S) -> None:
        """Look at the file again and again until `end`."""
        while not self._ending.is_set():
            try:
                async with asyncio.timeout(every_s):
                    await self._ending.wait()
            except TimeoutError:
                await self.look()
        if self._has_last_look:
            await self.look(is_last=True)

    def end(self, *, is_kept: bool = True) -> None:
        """Let `run` return, having written what is new to a file that is kept."""
        self._has_last_look = is_kept
        self._ending.set()

    async def look(self, *, is_last: bool = False) -> None:
        """Write what changed here, take over what others changed."""
        changes = self._lessons.take() if self._is_due() or is_last else Changes()
        try:
            kept = await asyncio.to_thread(self._file.sync, changes)
        except PolicyFault as error:
            kept = None
            self._tell("learned.fault", *({"fault": str(fault)} for fault in error.faults))
        except OSError as error:
            kept = None
            self._tell("learned.not_kept", {"file": error.filename, "error": error.strerror or str(error)})
        if kept is None:
            self._lessons.give_back(changes)
        self._adopt(kept)

    def _is_due(self) -> bool:
        now_s = time.monotonic()
        if not self._lessons.has_news and now_s < self._hits_due_s:
            return False
        self._hits_due_s = now_s + HITS_EVERY_S
        return True

    def _adopt(self, kept: Kept | None) -> None:
        if kept is not None:
            self._told = ""
            if self._lessons.adopt(kept):
                log.info("learned.adopted", lessons=len(self._lessons))
            self._adopted(len(self._lessons))

    def _tell(self, event: str, *said: dict[str, str]) -> None:
        """Tell a failure once, not at every look."""
        if str(said) != self._told:
            self._told = str(said)
            for fields in said:
                log.error(event, **fields)
