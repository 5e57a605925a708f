"""Any order of clients that ask, read and leave, of a backend that answers, dies and stalls, of reloads and a drain.

However it goes, nothing of it is left over: no task, connection, slot or request in flight. And every client has a
whole answer, an error in the right shape, or a visible cut, never a clean end of what was not whole.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.policy import load_policy
from proxy.sse import Parser
from tests.stage import Backend, Call, Stage, Wire

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}", max_concurrency: 3, timeouts: {connect: 2s, first_content: 200ms, idle: 200ms}}}
keep_alive: 50ms
rules:
  - {id: whole, when: {body: {whole: true}}, repair: [drop: [whole], stream: false]}
  - {id: live, when: {body: {live: true}}, repair: [drop: [live], stream: true]}
  - {id: single-file, when: {body: {single_file: true, n: {gt: 1}}}, repair: [fan_out: {concurrency: 1}]}
  - {id: choices, when: {body: {n: {gt: 1}}}, repair: [fan_out: {}]}
  - {id: again, when: {body: {odd: true}}, on_error: {status: 400, message: odd}, repair: [drop: [odd]]}
  - {id: dead, when: {body: {odd: true}}, on_error: {stream: [empty, silent]}, repair: [drop: [odd]]}
"""
RELOADED = POLICY.replace("max_concurrency: 3", "max_concurrency: 2").replace("keep_alive: 50ms", "keep_alive: 0")
KINDS = {
    "a stream": {"stream": True},
    "an answer": {},
    "a stream of a whole answer": {"stream": True, "whole": True},
    "an answer of a stream": {"live": True},
    "a stream of choices": {"stream": True, "n": 2},
    "choices": {"n": 2},
    "a stream of choices one by one": {"stream": True, "n": 2, "single_file": True},
    "a stream that may be asked again": {"stream": True, "odd": True},
}
# Whose answers are the backend's own bytes: what it ends cleanly itself ends so for the client.
RELAYED = ("a stream", "an answer", "a stream that may be asked again")
TUNNEL = "a tunnel"
WORDS = ("one ", "two ", "w" * 5000)
UPGRADE = b"GET /socket HTTP/1.1\r\nHost: p\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
REFUSAL = json.dumps({"error": {"message": "odd is not known", "type": "x", "param": "odd", "code": 400}}).encode()
TURNS = 40
PATIENCE_S = 5.0


def part(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(finish=None, **delta):
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return part(b"data: " + json.dumps({**chunk, "choices": [choice]}).encode() + b"\n\n")


def segments(body):
    """Return what the backend answers, piece by piece."""
    if body is None:
        return [SWITCH, b"hello"]
    if body.get("stream"):
        words = [event(content=word) for word in WORDS]
        done = part(b"data: [DONE]\n\n") + END
        return [HEAD % b"text/event-stream", event(role="assistant"), *words, event("stop"), done]
    choice = {"index": 0, "message": {"role": "assistant", "content": "".join(WORDS)}, "finish_reason": "stop"}
    whole = json.dumps(
        {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    ).encode()
    return [HEAD % b"application/json", part(whole[:30]), part(whole[30:]) + END]


@dataclass
class Client:
    wire: Wire
    kind: str
    has_left: bool = False


@dataclass
class Answering:
    """One request at the backend: what is still to be said of its answer."""

    call: Call
    left: list
    has_begun: bool = False

    @property
    def is_open(self):
        return bool(self.left) and not self.call.wire.has_ended

    def advance(self):
        self.has_begun = True
        self.call.send(self.left.pop(0))
        if not self.left and not self.call.get("upgrade"):
            self.call.wire.free()

    def finish(self):
        while self.is_open:
            self.advance()


class Walk:
    """The clients, the proxy and the backend while somebody plays with them."""

    def __init__(self, stage, policies):
        self.stage = stage
        self.policies = policies
        self.clients = []
        self.answering = []
        self.ended_early = False

    async def step(self, action, number):
        await getattr(self, f"do_{action}")(number)
        await self.settle()

    async def settle(self):
        """Let what is on its way arrive, as far as it does so by itself."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
        while not self.stage.backend.calls.empty():
            await self.take(self.stage.backend.calls.get_nowait())

    async def take(self, call):
        body = None if call.method == "GET" else json.loads(await call.body())
        self.answering.append(Answering(call, segments(body)))

    def pick(self, number, holds=lambda _each: True):
        some = [each for each in self.answering if each.is_open and holds(each)]
        return some[number % len(some)] if some else None

    def client(self, number):
        some = [each for each in self.clients if not each.has_left]
        return some[number % len(some)] if some else None

    async def do_ask(self, number):
        kind = [*KINDS, TUNNEL][number % (len(KINDS) + 1)]
        raw = UPGRADE
        if kind != TUNNEL:
            body = json.dumps({"model": "m", "messages": [], **KINDS[kind]}).encode()
            raw = b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        self.clients.append(Client(await self.stage.ask(raw), kind))

    async def do_advance(self, number):
        each = self.pick(number)
        for _ in range(1 + number % 4):
            if each and each.is_open:
                each.advance()

    async def do_finish(self, number):
        if each := self.pick(number):
            each.finish()

    async def do_die(self, number):
        if each := self.pick(number):
            each.left = []
            each.call.close()

    async def do_reset(self, number):
        if each := self.pick(number):
            each.left = []
            each.call.reset()

    async def do_refuse(self, number):
        if each := self.pick(number, lambda each: not each.has_begun):
            each.left = []
            length = b"Content-Length: %d\r\nContent-Type: application/json\r\n\r\n" % len(REFUSAL)
            each.call.answer(b"HTTP/1.1 400 Bad Request\r\n", length, REFUSAL)

    async def do_end_early(self, number):
        """End an answer cleanly that is not whole."""
        if each := self.pick(number, lambda each: each.has_begun and not each.call.get("upgrade")):
            each.left = []
            self.ended_early = True
            each.call.answer(END)

    async def do_leave(self, number):
        if each := self.client(number):
            each.has_left = True
            each.wire.close()

    async def do_vanish(self, number):
        if each := self.client(number):
            each.has_left = True
            each.wire.reset()

    async def do_pause(self, number):
        if each := self.client(number):
            each.wire.transport.pause_reading()

    async def do_read(self, number):
        if each := self.client(number):
            each.wire.transport.resume_reading()

    async def do_reload(self, number):
        self.stage.data_port.use(self.policies[number % len(self.policies)])

    async def do_drain(self, number):
        self.stage.data_port.leave()
        if number % 2:
            self.stage.data_port.close()

    async def end(self, how):
        """Let everything come to its end: the backend answers all that is asked, or nothing any more, or is gone."""
        async with asyncio.TaskGroup() as group:
            playing = group.create_task(self.play(how))
            for client in self.clients:
                if not client.has_left:
                    client.wire.transport.resume_reading()
                    self.judge(client, await client.wire.answer())
                    client.wire.close()
            async with asyncio.timeout(PATIENCE_S):
                await self.stage.data_port.wait_idle()
            playing.cancel()

    async def play(self, how):
        while True:
            for each in self.answering:
                if how == "finish":
                    each.finish()
                elif how == "die" and each.is_open:
                    each.call.close()
            await self.take(await self.stage.backend.calls.get())

    def judge(self, client, answer):
        if answer.status == 101:
            assert client.kind == TUNNEL
        elif answer.status >= 400:
            assert answer.is_whole
            assert answer.get("content-type") == "application/json"
            assert json.loads(answer.body)["error"].keys() - {"index"} == {"message", "type", "param", "code"}
        elif answer.get("content-type").startswith("text/event-stream"):
            self.judge_stream(client, answer)
        elif answer.is_whole and not (self.ended_early and client.kind in RELAYED):
            self.judge_choices(client, {choice["index"]: choice["message"]["content"] for choice in ended(answer.body)})

    def judge_stream(self, client, answer):
        parser = Parser(1 << 20)
        events = [one.data for one in parser.feed(answer.body) + parser.close()]
        chunks = [json.loads(data) for data in events if data != b"[DONE]"]
        failed = [index for index, chunk in enumerate(chunks) if "error" in chunk]
        if b"[DONE]" in events:
            assert answer.is_whole
            assert failed == []
            texts, finishes = told(chunks)
            assert set(finishes) == set(texts)
            self.judge_choices(client, texts)
        elif failed:
            assert failed == [len(chunks) - 1], "an error is the last event"
        elif answer.is_whole:
            assert self.ended_early, "a stream ended cleanly that is not whole"
            assert client.kind in RELAYED

    def judge_choices(self, client, texts):
        count = KINDS[client.kind].get("n", 1)
        assert texts == dict.fromkeys(range(count), "".join(WORDS))


def ended(body):
    choices = json.loads(body)["choices"]
    assert all(choice["finish_reason"] == "stop" for choice in choices)
    return choices


def told(chunks):
    texts, finishes = {}, []
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
        finishes += [choice["index"]] if choice["finish_reason"] else []
    return texts, finishes


async def nothing_is_left(stage):
    upstream = stage.data_port.upstream
    async with asyncio.timeout(PATIENCE_S):
        while is_anything_left(upstream):  # noqa: ASYNC110 nobody tells when a task or a connection has ended
            await asyncio.sleep(0)
    assert stage.data_port.in_flight == 0
    assert stage.data_port.reserve.held_bytes == 0
    assert b"\nmendproxy_streams_open 0.0\n" in stage.data_port.metrics.text()
    assert [key for key, slots in upstream._slots.items() if slots._value != key[1] or slots._waiters] == []


def is_anything_left(upstream):
    return len(asyncio.all_tasks()) > 1 or upstream.busy


async def walk(steps, how):
    loop, complaints = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    async with AsyncExitStack() as stack:
        backend = Backend()
        await backend.listen(stack)
        stage = Stage(stack, backend)
        await stage.proxy(POLICY)
        texts = (POLICY, RELOADED)
        policies = [load_policy("p.yaml", environ={"BACKEND": backend.url}, text=text) for text in texts]
        walking = Walk(stage, policies)
        for action, number in steps:
            await walking.step(action, number)
        await walking.end(how)
        await nothing_is_left(stage)
    assert complaints == []


OFTEN = ["ask"] * 4 + ["advance"] * 6 + ["finish", "leave", "die"]
RARELY = ["reset", "refuse", "refuse", *["end_early"] * 4, "vanish", "pause", "read", "reload", "drain"]
STEPS = st.lists(st.tuples(st.sampled_from(OFTEN) | st.sampled_from(OFTEN + RARELY), st.integers(0, 17)), max_size=25)


@settings(max_examples=100)
@given(STEPS, st.sampled_from(["finish", "finish", "stall", "die"]))
def test_any_order_of_events_leaves_nothing_behind(steps, how):
    asyncio.run(walk([("ask", steps[0][1] if steps else 0), *steps], how))
