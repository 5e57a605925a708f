"""The scripted backend: answers each request as the case says, and holds its pieces back until what they wait for.

until: {client: text, times: 1}   the client has received the text (so often)
until: {requests: n}              n requests have come in this exchange
until: gone                       the proxy has closed this connection
"""

import asyncio
import json
from dataclasses import dataclass, field

from tests.cases.runner.answers import piece, read_answers
from tests.cases.runner.values import check_keys, differences, to_bytes
from tests.stage import PATIENCE_S


@dataclass(slots=True)
class Sent:
    """A request as it came upstream, and the body of its answer so far."""

    call: object
    body: bytes | None = None
    answered: bytearray = field(default_factory=bytearray)

    @property
    def json(self):
        """The body's JSON; None where it is no JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class ScriptedBackend:
    """Answers requests by the case, and keeps them."""

    def __init__(self, backend, written, client):
        self._backend = backend
        self._client = client
        self._tasks = []
        self._news = asyncio.Event()
        self.answers = read_answers(written)
        self.sent = []
        self.surplus = 0

    async def serve(self, group):
        """Answer whatever comes, each request in a task of its own."""
        while True:
            sent = Sent(await self._backend.calls.get())
            self.sent.append(sent)
            self._tasks.append(group.create_task(self._answer(sent, len(self.sent))))
            self._news.set()

    async def finish(self):
        """Wait until every answer has been played to its end."""
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)
        self.surplus += self._backend.calls.qsize()

    async def has(self, count):
        """Wait until so many requests have come."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.sent) < count:
                self._news.clear()
                await self._news.wait()

    async def _answer(self, sent, number):
        sent.body = await sent.call.body()
        answer = self._choose(sent)
        if answer is None:
            self.surplus += 1
            sent.call.close()
            return
        answer.used.append(number)
        await _Play(self, self._client, sent, answer, number).run()

    def _choose(self, sent):
        for answer in self.answers:
            fits = answer.when is None or not differences(sent.json, answer.when)
            if fits and not answer.is_used_up:
                return answer
        return None


class _Play:
    """One answer while it is written."""

    def __init__(self, backend, client, sent, answer, number):
        self._backend = backend
        self._client = client
        self._sent = sent
        self._call = sent.call
        self._answer = answer
        self._number = number

    async def run(self):
        answer = self._answer
        if answer.framing != "none":
            self._call.send(self._head())
        for written in self._pieces():
            if isinstance(written, dict) and "until" in written:
                check_keys(written, {"until"})
                await self._until(written["until"])
            else:
                self._write(piece(written, self._number))
        await self._end(answer.end)

    def _pieces(self):
        """Return the pieces, or, where the answer says so, each byte of them as one."""
        if self._answer.cuts != "bytes":
            return self._answer.pieces
        whole = b"".join(piece(written, self._number) for written in self._answer.pieces)
        return [{"bytes": chr(byte)} for byte in whole]

    def _head(self):
        answer = self._answer
        framing = []
        if answer.framing == "chunked":
            framing = [("Transfer-Encoding", "chunked")]
        elif answer.framing == "length" and answer.status not in (204, 304):
            framing = [("Content-Length", str(self._length()))]
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}", *(f"{n}: {v}" for n, v in (*answer.headers, *framing))]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _length(self):
        bodies = [one for one in self._answer.pieces if not (isinstance(one, dict) and "until" in one)]
        return sum(len(piece(one, self._number)) for one in bodies)

    def _write(self, data):
        self._sent.answered += data
        if self._answer.framing == "chunked" and data:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._call.send(data)

    async def _until(self, what):
        if what == "gone":
            await self._call.gone()
            return
        check_keys(what, {"client", "times", "requests"})
        if "requests" in what:
            await self._backend.has(what["requests"])
        else:
            await self._client.sees(to_bytes(what["client"]), what.get("times", 1))

    async def _end(self, how):
        if how in ("clean", "close"):
            self._call.answer(b"0\r\n\r\n" if self._answer.framing == "chunked" else b"")
        if how in ("cut", "close"):
            self._call.close()
        elif how == "reset":
            self._call.reset()
        elif how == "gone":
            await self._call.gone()
