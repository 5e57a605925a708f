"""A real `mendproxy serve`, for tests of what only a process has: signals, an exit code, stderr, ports to dial."""

import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import settings

# How long an example takes says nothing on a machine that others use too; pytest's own limit holds.
settings.register_profile("mendproxy", deadline=None)
settings.load_profile("mendproxy")

pytest_plugins = ("tests.stage",)

ROOT = Path(__file__).parent.parent
PATIENCE_S = 10.0
BODY = {"Content-Type": "application/json"}


class Serving:
    """The process. `output` is all that it has said so far, line by line; a thread reads it, so it never blocks."""

    def __init__(self, policy, *flags, environ=None):
        own = {name: value for name, value in os.environ.items() if not name.startswith("MENDPROXY_")}
        self._process = subprocess.Popen(  # noqa: S603 the command is this test's own
            [sys.executable, "-m", "proxy", "serve", "-c", str(policy), "--port", "0", "--admin-port", "0", *flags],
            cwd=ROOT,
            env=own | (environ or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = []
        self._lines = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.url = self.admin_url = ""

    @property
    def pid(self):
        """The number of the process."""
        return self._process.pid

    def _read(self):
        for line in self._process.stdout:
            self.output.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def next_line(self):
        """Return the next line that the process says, None when it has ended."""
        return self._lines.get(timeout=PATIENCE_S)

    def until(self, event):
        """Return the next log line of an event; those before it are passed over."""
        while (line := self.next_line()) is not None:
            said = json.loads(line) if line.startswith("{") else {}
            if said.get("event") == event:
                return said
        raise AssertionError(f"it ended and never said {event!r}, but:\n{''.join(self.output)}")

    def wait_until_ready(self):
        serving = self.until("serving")
        self.url, self.admin_url = serving["url"], serving["admin"]

    def send_signal(self, name):
        self._process.send_signal(signal.Signals[name])

    def exit_code(self):
        """Return the exit code, waiting for the process to end."""
        code = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def stop(self):
        """End the process however it is, and let nothing of it stay open."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self._process.stdout.close()

    @contextmanager
    def connection(self, url=None):
        """Give a connection that is kept alive."""
        connection = http.client.HTTPConnection(urlsplit(url or self.url).netloc, timeout=PATIENCE_S)
        try:
            yield connection
        finally:
            connection.close()

    def get(self, path):
        """Return the status and text of the admin port's answer."""
        with self.connection(self.admin_url) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def post(self, body, path="/v1/chat/completions", **headers):
        """Return the data port's answer to a body, read to its end: status, headers in lower case, bytes."""
        with self.connection() as connection:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, raw, BODY | headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


@pytest.fixture(scope="session")
def serving():
    """Return what runs `mendproxy serve` on free ports while a block runs: `with serving(policy, *flags) as proxy`."""

    @contextmanager
    def run(policy, *flags, environ=None):
        process = Serving(policy, *flags, environ=environ)
        try:
            process.wait_until_ready()
            yield process
        finally:
            process.stop()

    return run
