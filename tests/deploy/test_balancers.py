"""Two replicas behind nginx and behind HAProxy: one of them goes, and no request is lost that had not begun."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import yaml

from proxy import standin

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
TEXTS = {
    "nginx": (DEPLOY / "nginx" / "mendproxy.conf").read_text(),
    "haproxy": (DEPLOY / "haproxy" / "haproxy.cfg").read_text(),
}
PAIR = yaml.safe_load((DEPLOY / "compose" / "docker-compose.yaml").read_text())["services"]
CLIENTS = 12
BEFORE_S, AFTER_S = 1.0, 2.5
POLICY = 'version: 1\nbackends: {main: {url: "${BACKEND}", presets: [sglang]}}\n'
PLAIN = 'version: 1\nbackends: {main: {url: "${BACKEND}"}}\n'
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "count to 20"}], "stream": True}
BALANCERS = [pytest.param(name, marks=pytest.mark.real) for name in TEXTS]


def directives(text):
    """Return the lines of a configuration without comments."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def filled(name, port, replicas):
    """Return a balancer's configuration for addresses of this test.

    `replicas` are (data port, admin port); one without the latter is not asked whether it is ready.
    """
    text = re.sub(r"(listen |bind :)8080", lambda match: match[1].replace(":", "") + f"127.0.0.1:{port}", TEXTS[name])
    for number, (data, admin) in enumerate(replicas, 1):
        check = "" if name == "nginx" else f" port {admin}" if admin else " no-check"
        text = text.replace(f"mendproxy-{number}:8080", f"127.0.0.1:{data}{check}")
    assert "8080" not in text
    return text


def written(name, folder, port, replicas):
    """Write what a balancer is started with, and return its command."""
    text = filled(name, port, replicas)
    if name == "nginx":
        user = "user root;\n" if os.geteuid() == 0 else ""
        paths = "".join(
            f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        log = f"error_log {folder}/error.log;\npid {folder}/pid;\n"
        text = text.replace("/dev/stdout", f"{folder}/access.log")
        text = f"{user}{log}events {{ worker_connections 256; }}\nhttp {{\n{paths}{text}\n}}\n"
    else:
        text = text.replace("log stdout format raw local0 info", f"log {folder}/log local0")
    (folder / "balancer.conf").write_text(text)
    if name == "nginx":
        return ["nginx", "-e", f"{folder}/error.log", "-c", f"{folder}/balancer.conf"]
    return ["haproxy", "-f", f"{folder}/balancer.conf", "-p", f"{folder}/pid"]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 the command is this test's own
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextmanager
def balancer(name, folder, replicas):
    """Run a balancer while the block runs, and give its address. Its command returns once it listens."""
    port = free_port()
    command = written(name, folder, port, replicas)
    run([*command, "-D"] if name == "haproxy" else command)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.kill(int((folder / "pid").read_text().split()[0]), signal.SIGTERM)


@pytest.mark.parametrize("name", BALANCERS)
def test_a_balancer_takes_its_configuration(name, tmp_path):
    command = written(name, tmp_path, free_port(), [(free_port(), free_port()), (free_port(), free_port())])
    said = run([*command, "-t"] if name == "nginx" else [*command, "-c"])
    assert not re.search(r"warn|alert", said, re.IGNORECASE), said


def test_nginx_passes_bytes_on_as_they_come_and_sends_nothing_twice():
    lines = set(directives(TEXTS["nginx"]))
    assert lines >= {
        "proxy_buffering off;",
        "proxy_request_buffering off;",
        "gzip off;",
        "proxy_http_version 1.1;",
        "proxy_next_upstream error timeout;",
        "proxy_set_header X-Request-Id $mendproxy_request_id;",
        "proxy_set_header Connection $mendproxy_connection;",
    }
    assert [line for line in lines if "non_idempotent" in line] == []


def test_haproxy_asks_who_is_ready_and_sends_nothing_twice():
    lines = set(directives(TEXTS["haproxy"]))
    assert lines >= {
        "retry-on conn-failure",
        "option redispatch 1",
        "option abortonclose",
        "http-check expect status 200",
        "default-server check port 8081 inter 1s fall 2 rise 1",
    }
    assert [line for line in lines if "on-marked-down" in line or "all-retryable-errors" in line] == []


@pytest.mark.parametrize("name", list(TEXTS))
def test_a_balancers_log_holds_no_query(name):
    [line] = re.findall(r"(?:log_format|log-format)[^;]*?(?:;|\n(?=    #|    [a-z]))", TEXTS[name])
    assert re.findall(r"\$request\b|\$request_uri|\$args|\$query_string|%HU|%HQ|%r\b|%\{\+Q\}r", line) == []


@pytest.mark.parametrize("name", list(TEXTS))
def test_a_balancer_waits_longer_than_a_backend_may_take(name):
    waits = re.search(r"(?:proxy_read_timeout|timeout server) (\d+)m", TEXTS[name])[1]
    assert int(waits) > 10


@pytest.mark.parametrize("name", list(TEXTS))
def test_a_balancer_knows_the_replicas_of_the_composed_pair(name):
    replicas = {service for service in PAIR if service != "balancer"}
    assert set(re.findall(r"(mendproxy-\d):8080", TEXTS[name])) == replicas
    assert PAIR["balancer"]["depends_on"].keys() == replicas


@pytest.mark.parametrize("name", [service for service in PAIR if service != "balancer"])
def test_a_replica_of_the_pair_is_reached_through_the_balancer_alone_and_can_change_nothing(name):
    service = PAIR[name]
    assert "ports" not in service
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    [user] = re.findall(r"^USER (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert service["user"] == user
    assert int(re.fullmatch(r"(\d+)m", service["stop_grace_period"])[1]) > 10
    volumes = [volume.split(":") for volume in service["volumes"]]
    assert [(DEPLOY / "compose" / source).resolve() for source, *_ in volumes] == [ROOT / "config"]


def test_the_composed_balancer_is_given_the_configuration_that_is_tested_here():
    [(source, target, mode)] = [volume.split(":") for volume in PAIR["balancer"]["volumes"]]
    assert (DEPLOY / "compose" / source).resolve() == DEPLOY / "nginx" / "mendproxy.conf"
    assert (target, mode) == ("/etc/nginx/conf.d/default.conf", "ro")


@pytest.mark.parametrize("name", BALANCERS)
async def test_events_go_through_as_they_come_and_who_leaves_is_noticed(name, stage, tmp_path):
    await stage.proxy(PLAIN)
    with balancer(name, tmp_path, [(stage.port, None), (stage.port, None)]) as url:
        stage.port = int(url.rpartition(":")[2])
        asking = await stage.ask(
            b"POST /v1/files//a?b=%2F HTTP/1.1\r\nHost: p\r\nX_Odd: 1\r\nContent-Length: 2\r\n\r\n{}"
        )
        call = await stage.backend.call()
        assert call.target == "/v1/files//a?b=%2F"
        assert call.get("x_odd") == "1"
        assert call.get("x-forwarded-for").startswith("127.0.0.1")
        call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in (b"data: one\n\n", b"data: two\n\n"):
            call.send(b"%x\r\n%b\r\n" % (len(event), event))
            # The next one is not sent before this one has come.
            await asking.sees(event)
        assert call.get("x-request-id").encode() in asking.received
        asking.reset()
        await call.gone()


@dataclass(frozen=True)
class Asked:
    """A request as its client saw it. Units: seconds on the monotonic clock."""

    id: str
    began_s: float
    outcome: str
    how: str


class Load:
    """Clients that ask one request after another, and what became of each."""

    def __init__(self, url):
        self._url = url
        self._is_over = False
        self.asked = []

    async def client(self, number):
        async with aiohttp.ClientSession() as session:
            count = 0
            while not self._is_over:
                count += 1
                self.asked.append(await self._ask(session, f"{number}-{count}"))

    async def _ask(self, session, request_id):
        began_s = time.monotonic()
        says = {"x-request-id": request_id, "x-standin-pace-ms": "10"}
        try:
            async with session.post(f"{self._url}/v1/chat/completions", json=BODY, headers=says) as answer:
                outcome, how = await self._read(answer, request_id)
        except aiohttp.ClientError as error:
            outcome, how = "lost", type(error).__name__
        return Asked(request_id, began_s, outcome, how)

    async def _read(self, answer, request_id):
        if answer.status != 200:
            return "refused", f"{answer.status} {answer.headers.get('proxy-status', '')}"
        try:
            text = await answer.text()
        except aiohttp.ClientError as error:
            return "cut", type(error).__name__
        is_whole = text.rstrip().endswith("data: [DONE]") and answer.headers["x-request-id"] == request_id
        return ("whole", "") if is_whole else ("cut", "no [DONE], or another's")

    async def run(self, meanwhile):
        """Return what `meanwhile` returns, which is run under load."""
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self.client(number))
            try:
                return await meanwhile()
            finally:
                self._is_over = True


def ports_of(proxy):
    return tuple(int(url.rpartition(":")[2]) for url in (proxy.url, proxy.admin_url))


@pytest.mark.real
@pytest.mark.parametrize("name", BALANCERS)
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
async def test_a_replica_goes_and_what_had_not_begun_is_answered_by_the_other(name, how, serving, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with standin.serve("sglang") as backend:
        environ = {"BACKEND": backend.url}
        with (
            serving(policy, environ=environ) as first,
            serving(policy, environ=environ) as second,
            balancer(name, tmp_path, [ports_of(first), ports_of(second)]) as url,
        ):
            load = Load(url)

            async def meanwhile():
                await asyncio.sleep(BEFORE_S)  # the load itself: nothing is waited for
                first.send_signal(how)
                code = await asyncio.to_thread(first.exit_code)
                gone_s = time.monotonic()
                await asyncio.sleep(AFTER_S)
                return code, gone_s

            code, gone_s = await load.run(meanwhile)
        seen = Counter(request.headers.get("x-request-id") for request in backend.requests if request.body)
    bad = [asked for asked in load.asked if asked.outcome != "whole"]
    assert len(load.asked) > 10 * CLIENTS
    assert [request_id for request_id, count in seen.items() if count > 1] == []
    if how == "SIGTERM":
        assert code == 0
        assert bad == [], f"{len(bad)} of {len(load.asked)}"
    else:
        assert len(bad) <= CLIENTS, f"{len(bad)} of {len(load.asked)}"
        assert [asked for asked in bad if asked.began_s > gone_s] == []
