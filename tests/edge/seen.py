"""What is told of a request on one data path, to be compared with what is told of it on another."""

import asyncio
import re

from msgspec.structs import replace

from proxy import server

CALM = ("10s", "10s", "10s")


class Seen:
    """What was told of a request on one data path."""

    def __init__(self, stage, monkeypatch, policy, known):
        """Serve by a policy; `known` are requests with the parts of their answers, of which the heads get known."""
        self.tasks = 0
        self._stage = stage
        self._policy = policy
        self._known = known
        carry_out = server.carry_out

        def counted(*arguments):
            self.tasks += 1
            return carry_out(*arguments)

        monkeypatch.setattr(server, "carry_out", counted)

    async def begin(self, path, timeouts=CALM, *, how="used", **environ):
        """Return a client whose next request goes out on a connection that was used before, or on a fresh one.

        Or `known`: such requests and answers came before, so the heads of both are known. The path may be `lane`: that
        is the direct one, where no head is ever known.
        """
        stage = self._stage
        stage.data_path = "direct" if path == "lane" else path
        await stage.proxy(self._policy % timeouts, **environ)
        if path == "lane":
            stage.listener.quick = None
        client = await stage.client()
        if how != "fresh":
            client.send(b"GET /v1/models HTTP/1.1\r\nHost: p\r\n\r\n")
            (await stage.backend.call()).answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
            await client.answer("GET")
            await stage.data_port.serves(0)
        for raw, parts in self._known * 3 if how == "known" and path == "direct" else ():
            client.send(raw)
            call = await stage.backend.call()
            await call.body()
            await answered(call, parts)
            await client.answer()
            await stage.data_port.serves(0)
        await read_on()
        self.tasks, self._records = 0, []
        metrics = stage.data_port.metrics
        counted_before = metrics.answered

        def watched(path, status, record, *times):
            self._records.append((status, replace(record, plan=None, error=record.error and record.error.token)))
            counted_before(path, status, record, *times)

        metrics.answered = watched
        stage.notes.clear()
        return client

    async def end(self, *told):
        """Return all that was told, once nothing is served any more; what differs from run to run by a word."""
        await self._stage.data_port.serves(0)
        notes = [note if isinstance(note, int) else note.token for _, note in self._stage.notes]
        text = repr((told, self._records, notes, self._stage.data_port.reserve.held_bytes))
        text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", text)
        text = re.sub(r"cmpl-[0-9a-f]{32}", "ID", re.sub(r'"created":\d{9,}', '"created":NOW', text))
        return re.sub(r"\('Date', '[^']*'\)", "('Date', 'NOW')", text)


async def read_on():
    """Let the proxy read what was sent."""
    for _ in range(20):
        await asyncio.sleep(0)


async def read(client):
    """Return an answer with its head as it is, but for the order of headers."""
    got = await client.answer()
    return got.first_line, sorted(got.headers), got.body, got.is_whole


async def answered(call, parts):
    for part in parts:
        if part is None:
            call.close()
            return
        call.send(part)
        await read_on()
    call.wire.free()
