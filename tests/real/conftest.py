"""Real backends, and mendproxy as a process of its own in front of them.

`MENDPROXY_REAL_SGLANG`, `…_LLAMAFACTORY`, `…_TRANSFORMERS_SERVE` and `…_LLAMA_CPP_PYTHON` are the addresses of running
servers. Where one is not set, `MENDPROXY_REAL_BACKENDS` names a folder that holds `sglang/run.sh`,
`llamafactory/run.sh`, `transformers-serve/run.sh` and `llama-cpp-python/run.sh`, each started with a port.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

READY_S = 600


@pytest.fixture(scope="session")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _backend("sglang", tmp_path_factory.mktemp("sglang")) as url:
        yield url


@pytest.fixture(scope="session")
def llamafactory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _backend("llamafactory", tmp_path_factory.mktemp("llamafactory")) as url:
        yield url


@pytest.fixture(scope="session")
def before_sglang(sglang: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _proxy("sglang", sglang, tmp_path_factory.mktemp("proxy")) as url:
        yield url


@pytest.fixture(scope="session")
def fanned_out_before_sglang(sglang: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    rules = "rules: [{id: three, when: {body: {n: {gt: 1}}}, repair: [fan_out: {}]}]\n"
    with _proxy("sglang", sglang, tmp_path_factory.mktemp("proxy"), rules) as url:
        yield url


@pytest.fixture(scope="session")
def before_llamafactory(llamafactory: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _proxy("llamafactory", llamafactory, tmp_path_factory.mktemp("proxy")) as url:
        yield url


@pytest.fixture(scope="session")
def transformers_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _backend("transformers-serve", tmp_path_factory.mktemp("transformers-serve")) as url:
        yield url


@pytest.fixture(scope="session")
def llama_cpp_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _backend("llama-cpp-python", tmp_path_factory.mktemp("llama-cpp-python")) as url:
        yield url


@pytest.fixture(scope="session")
def before_transformers_serve(transformers_serve: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _proxy("transformers-serve", transformers_serve, tmp_path_factory.mktemp("proxy")) as url:
        yield url


@pytest.fixture(scope="session")
def before_llama_cpp_python(llama_cpp_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with _proxy("llama-cpp-python", llama_cpp_python, tmp_path_factory.mktemp("proxy")) as url:
        yield url


@contextmanager
def _backend(name: str, folder: Path) -> Iterator[str]:
    variable = f"MENDPROXY_REAL_{name.upper().replace('-', '_')}"
    given = os.environ.get(variable)
    if given:
        yield given.rstrip("/")
        return
    scripts = os.environ.get("MENDPROXY_REAL_BACKENDS")
    if not scripts:
        pytest.fail(f"set {variable} to the address of a running {name}")
    port = _free_port()
    with (folder / "log").open("wb") as log, _process([str(Path(scripts) / name / "run.sh"), str(port)], log):
        url = f"http://127.0.0.1:{port}"
        _wait_ready(f"{url}/v1/models")
        yield url


@contextmanager
def _proxy(preset: str, backend: str, folder: Path, rules: str = "") -> Iterator[str]:
    policy = folder / "policy.yaml"
    policy.write_text(f"version: 1\nbackends:\n  main: {{url: {backend}, presets: [{preset}]}}\n{rules}")
    port, admin = _free_port(), _free_port()
    command = [sys.executable, "-m", "proxy", "serve", "-c", str(policy), "--port", str(port)]
    command += ["--admin-port", str(admin), "--drain-grace", "0s"]
    with (folder / "log").open("w+b") as log, _process(command, log) as process:
        _wait_ready(f"http://127.0.0.1:{admin}/readyz")
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        assert process.wait(30) == 0


@contextmanager
def _process(command: list[str], log: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(url: str) -> None:
    ends_s = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert time.monotonic() < ends_s, f"{url} is not ready"
            threading.Event().wait(0.25)


def post(base: str, body: dict[str, object], path: str = "/v1/chat/completions") -> tuple[int, dict[str, str], bytes]:
    """Return status, headers (lower case) and body of a POST; a cut body ends where it was cut."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"content-type": "application/json"})  # noqa: S310
    try:
        answer = urllib.request.urlopen(request, timeout=60)  # noqa: S310
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        parts = []
        try:
            while part := answer.read1(65536):
                parts.append(part)
        except (OSError, http.client.HTTPException) as cut:
            parts.append(f"\n<{type(cut).__name__}>".encode())
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, b"".join(parts)


@pytest.fixture(name="post")
def _post() -> object:
    return post
