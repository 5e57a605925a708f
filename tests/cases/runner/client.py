"""The rude client: sends what the case says, byte by byte if it likes, keeps all that it receives, leaves when told."""

from tests.cases.runner.values import check_keys, to_bytes
from tests.stage import Wire

_KEYS = {"method", "path", "headers", "body", "raw", "chunked", "wire", "version", "leaves", "connection"}


class Ear(Wire):
    """A client's connection that keeps what it received, whatever is read of it."""

    def __init__(self):
        super().__init__()
        self.heard = bytearray()

    def data_received(self, data):
        self.heard += data
        super().data_received(data)


class ScriptedClient:
    """Asks as the case says. `sent` is the body that it sent, `answer` what it was answered, None where it left."""

    def __init__(self, stage, written, wire=None):
        check_keys(written, _KEYS)
        self._stage = stage
        self._written = written
        self.wire = wire
        self._since = 0
        self.method = written.get("method", "POST")
        self.sent = self._body()
        self.answer = None

    async def sees(self, text, times=1):
        """Wait until the text has come so often in this exchange."""
        await self.wire.wait(lambda: self.heard.count(text) >= times or self.wire.has_ended)
        if self.heard.count(text) < times:
            raise AssertionError(f"the client never saw {text!r} {times} times, but {self.heard!r}")

    @property
    def heard(self):
        """All bytes that have come in this exchange."""
        return bytes(self.wire.heard[self._since :])

    async def connect(self):
        """Open the connection that the exchange needs."""
        if self.wire is None:
            self.wire = await self._stage.client(Ear)
        self._since = len(self.wire.heard)

    async def run(self, backend):
        """Ask, and read the answer to its end, or leave before it."""
        self.wire.send(self._request())
        leaves = self._written.get("leaves")
        if leaves is None:
            self.answer = await self.wire.answer(self.method)
            return
        check_keys(leaves, {"after", "how"})
        after = leaves["after"]
        if isinstance(after, dict) and "requests" in after:
            await backend.has(after["requests"])
        else:
            await self.sees(to_bytes(after))
        getattr(self.wire, leaves.get("how", "close"))()

    def _body(self):
        written = self._written
        if "body" in written:
            return to_bytes({"json": written["body"]})
        if "chunked" in written:
            return b"".join(map(to_bytes, written["chunked"]))
        return to_bytes(written["raw"]) if "raw" in written else b""

    def _request(self):
        written = self._written
        if "wire" in written:
            return to_bytes(written["wire"])
        line = f"{self.method} {written.get('path', '/v1/chat/completions')} HTTP/{written.get('version', '1.1')}"
        lines = [line, *(f"{name}: {value}" for name, value in self._headers())]
        return "\r\n".join([*lines, "", ""]).encode() + self._framed()

    def _headers(self):
        written = self._written
        usual = {"Host": "proxy.test"}
        if "body" in written or "raw" in written or "chunked" in written:
            usual["Content-Type"] = "application/json"
            usual |= {"Transfer-Encoding": "chunked"} if "chunked" in written else {"Content-Length": len(self.sent)}
        own = written.get("headers", {})
        names = {name.lower() for name in own}
        yield from ((name, value) for name, value in usual.items() if name.lower() not in names)
        for name, values in own.items():
            # null leaves out a header that would be sent otherwise.
            yield from (
                (name, value) for value in (values if isinstance(values, list) else [values]) if value is not None
            )

    def _framed(self):
        if "chunked" not in self._written:
            return self.sent
        parts = map(to_bytes, self._written["chunked"])
        return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"
