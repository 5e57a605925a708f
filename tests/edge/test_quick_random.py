"""The quick lane beside the lane: the same requests, in any order and over several connections, look the same to both
ends, to the byte, whether heads are remembered or not.
"""

import random
import re

import pytest

from tests.edge.seen import answered

POLICY = """
version: 1
backends: {main: {url: "${BACKEND}/base", timeouts: {connect: 5s, first_content: 5s, idle: 5s}}}
rules:
  - {id: dropped, when: {body: {sharp: true}}, repair: [drop: [sharp]]}
  - {id: exploded, when: {body: {whole: true}}, repair: [stream: false, drop: [whole]]}
  - {id: by-header, when: {header: {x-who: "2"}}, repair: [set: {user: two}]}
"""
# With it, nothing of a stream goes out before it proves life.
HOLDS = "  - {id: reacts, on_error: {status: 418}, repair: [drop: [odd]]}\n"
LINES = [
    "Accept: */*",
    "Authorization: Bearer a",
    "Authorization: Bearer b",
    "X-Who: 1",
    "X-Who: 2",
    "x-request-id: mine",
    "X-Request-Id: other",
    "Connection: keep-alive",
    "Connection: X-Who",
    "X-Forwarded-For: 1.2.3.4",
    "Via: 1.0 a",
    "Content-Encoding: identity",
    "Odd_Name: x",
    "X-Twice: 1\r\nX-Twice: 2",
    "X-Wide:   blanks  ",
]
BODIES = [
    '{"model": "m"}',
    '{"model": "m", "sharp": true}',
    '{"model": "m", "stream": true, "whole": true}',
    '{"model": "m", "stream": true}',
    '{"model": "m", "stream": true, "sharp": true}',
    '{"model": "m", "messages": [{"role": "user", "content": "%s"}]}',
    "no JSON",
]
WHOLE = (
    b'{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": '
    b'[{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}'
)
EVENTS = [
    b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"content": "one"}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"content": "%b"}}]}\n\n' % (b"two " * 900),
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n',
    b"data: [DONE]\n\n",
    b": ping\n\n",
    b"data: no JSON\r\n\r\n",
    b'data: {"error": "boom"}\n\n',
]
OF_ANSWERS = [
    "Date: Sun, 06 Nov 1994 08:49:37 GMT",
    "date: Sun, 06 Nov 1994 08:50:37 GMT",
    "x-request-id: theirs",
    "X-Request-ID: theirs, too",
    "Set-Cookie: a=1\r\nSet-Cookie: b=2",
    "Connection: close",
    "Server: s",
    "Content-Encoding: identity",
]
STATUSES = ["200 OK", "200 OK", "200 Fine", "201 Created", "404 Not Found"]


def requests(rng):
    """Return some requests that are much alike, each more than once."""
    kinds = []
    for _ in range(2):
        lines = ["Host: p", *rng.sample(LINES, rng.randrange(3))]
        kinds.append((lines, rng.randrange(len(lines) + 1), rng.choice(["Content-Length", "content-length"])))
    made = []
    for _ in range(24):
        lines, at, name = rng.choice(kinds)
        body = rng.choice(BODIES).replace("%s", "x" * rng.choice([0, 9, 90, 900]))
        head = ["POST /v1/chat/completions?a=b HTTP/1.1", *lines[:at], f"{name}: {len(body)}", *lines[at:]]
        made.append(("\r\n".join([*head, "", ""]) + body).encode())
    return made


def answers(rng):
    """Return some answers that are much alike, each in parts."""
    kinds = [(rng.choice(STATUSES), rng.sample(OF_ANSWERS, rng.randrange(3)), rng.randrange(3)) for _ in range(2)]
    made = []
    for _ in range(24):
        status, lines, streams = rng.choice(kinds)
        if streams:
            head = [
                f"HTTP/1.1 {status}",
                *lines,
                "content-type: text/event-stream",
                "transfer-encoding: chunked",
                "",
                "",
            ]
            made.append(["\r\n".join(head).encode(), *stream(rng)])
        else:
            body = rng.choice([WHOLE, WHOLE, b"{}", b"", b"x" * 5000])
            head = [f"HTTP/1.1 {status}", *lines, f"content-length: {len(body)}", "", ""]
            made.append(["\r\n".join(head).encode() + body])
    return made


def stream(rng):
    """Return the chunks of a stream: nearly all are one event each, some are cut where no chunk ends."""
    events = rng.sample(EVENTS, rng.randrange(1, len(EVENTS))) + rng.choice([[], [b"data: [DONE]\n\n"]])
    if not rng.randrange(4):
        text = b"".join(events)
        at = rng.randrange(1, len(text))
        events = [text[:at], text[at:]]
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events] + [b"0\r\n\r\n"]
    if rng.randrange(2):
        chunks[-2:] = [b"".join(chunks[-2:])]
    if not rng.randrange(4):
        text = b"".join(chunks)
        at = rng.randrange(1, len(text))
        chunks = [text[:at], text[at:]]
    return chunks


def plain(told):
    """Return it with what differs from time to time replaced by a word."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", repr(told))
    text = re.sub(r'cmpl-[0-9a-f]{32}|"created":\d{9,}', "MADE", text)
    text = re.sub(r"'127.0.0.1:\d+'", "BACKEND", text)
    return re.sub(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} 20\d\d [\d:]{8} GMT", "NOW", text)


async def played(stage, seed, *, is_quick):
    """Return what both ends saw."""
    rng = random.Random(seed)  # noqa: S311 it decides what is tried, nothing else
    stage.data_path = "direct"
    await stage.proxy(POLICY + HOLDS if seed % 2 else POLICY)
    if not is_quick:
        stage.listener.quick = None
    clients, seen, told = [await stage.client(), await stage.client()], [], []
    waiting = list(zip(requests(rng), answers(rng), strict=True))
    while waiting:
        at = rng.randrange(2)
        behind = [waiting.pop() for _ in range(min(len(waiting), rng.choice([1, 1, 1, 2])))]
        if clients[at].has_ended:
            clients[at] = await stage.client()
        clients[at].send(b"".join(raw for raw, _ in behind))
        for _, answer in behind:
            call = await stage.backend.call()
            seen.append((call.head, await call.body()))
            await answered(call, answer)
            if b"Connection: close" in answer[0]:
                call.close()
            got = await clients[at].answer()
            told.append((got.first_line, got.headers, got.body, got.is_whole))
        await stage.data_port.serves(0)
    return plain((seen, told))


@pytest.mark.parametrize("seed", range(40))
async def test_both_ends_see_the_same_whether_heads_are_known_or_not(stage, seed):
    assert await played(stage, seed, is_quick=True) == await played(stage, seed, is_quick=False)
