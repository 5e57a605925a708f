"""The OpenAI SDK's clients, and a proxy process in front of both stand-ins and of a backend that dies."""

import json
import socketserver
import threading
from contextlib import contextmanager

import pytest
from openai import OpenAI

# The model names the backend, and so what a backend needs of its rules.
POLICY = """
version: 1
backends:
  sglang: {url: "standin://sglang", models: [sglang], presets: [sglang]}
  llamafactory: {url: "standin://llamafactory", models: [llamafactory], presets: [llamafactory]}
  fanned: {url: "standin://sglang", models: [fanned]}
  streamed: {url: "standin://sglang", models: [streamed]}
  dying: {url: "${DYING}", models: ["dying*"]}
rules:
  - {id: fans, when: {body: {model: {in: [fanned, dying-fanned]}, n: {gt: 1}}}, repair: [fan_out: {max: 8}]}
  - {id: streams, when: {backend: streamed, body: {stream: {not: {eq: true}}}}, repair: [stream: true]}
  - {id: sharp, when: {body: {sharp: {exists: true}}}, repair: [drop: [sharp]]}
  - {id: bad, when: {body: {bad: true}}, repair: [reject: {message: It is bad., param: bad, code: too_bad}]}
"""


class Dying(socketserver.StreamRequestHandler):
    """Begins a stream of two chunks and dies; of a model whose name ends with `early` before the first."""

    def handle(self):
        length = 0
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        model = json.loads(self.rfile.read(length))["model"]
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for delta in () if model.endswith("early") else ({"role": "assistant", "content": ""}, {"content": "Hel"}):
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": [choice]}
            data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


@contextmanager
def dying_backend():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Dying) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="session")
def proxy(serving, tmp_path_factory):
    policy = tmp_path_factory.mktemp("sdk") / "policy.yaml"
    policy.write_text(POLICY)
    with dying_backend() as url, serving(policy, environ={"DYING": url}) as running:
        yield running


@pytest.fixture
def client(proxy):
    with OpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0, timeout=10) as made:
        yield made
