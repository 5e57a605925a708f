"""Who is measured: nginx where it is installed, and the proxy of this checkout by a preset and without any rule.

Each is a command that serves `port` and passes on to `backend_port`, both of 127.0.0.1.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# What the proxy ends with when a policy is bad.
COULD_NOT_START = 3

PRODUCT, BARE, WORKERS, NGINX, DIRECT = "mendproxy", "without rules", "two workers", "nginx", "direct"

# One worker, and nothing that the proxy would not do either: no log of requests, no buffering of answers, no files.
_NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr error;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_max_body_size 0; client_body_buffer_size 8m;
  client_body_temp_path {folder}/nginx-body; proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-fastcgi; uwsgi_temp_path {folder}/nginx-uwsgi; scgi_temp_path {folder}/nginx-scgi;
  keepalive_requests 1000000000;
  upstream backend {{
    server 127.0.0.1:{backend_port}; keepalive 1024; keepalive_requests 1000000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 300s;
    }}
  }}
}}
"""

# A preset as an operator has it, and a rule for each scenario that needs one.
RULES = """
version: 1
backends: {main: {url: "http://127.0.0.1:8000", presets: [sglang]}}
rules:
  - id: bench-drop
    when: {body: {return_meta_info: true}, not: {body: {stream: true}}}
    repair: [{drop: [return_meta_info]}]
  - id: bench-explode
    when: {body: {stream: true, return_meta_info: true}}
    repair: [{stream: false}]
  - id: bench-merge
    when: {body: {stream: true, n: {gt: 1}}}
    repair: [{fan_out: {max: 8}}]
"""
NO_RULES = """
version: 1
backends: {main: {url: "http://127.0.0.1:8000"}}
"""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a candidate listens, and where its backend does; its files lie in `folder`."""

    folder: Path
    port: int
    admin_port: int
    backend_port: int


@dataclass(frozen=True, slots=True)
class Contender:
    """A candidate before it runs. `is_repairing`: it has the rules that the scenarios need."""

    name: str
    is_repairing: bool = False
    given: str | None = None
    workers: int = 1

    def command(self, at: Address) -> list[str]:
        """Return the command that serves at an address; its configuration is written for it."""
        if self.name == NGINX:
            config = at.folder / f"nginx-{at.port}.conf"
            config.write_text(_NGINX.format(folder=at.folder, port=at.port, backend_port=at.backend_port))
            return [str(nginx_binary()), "-p", str(at.folder), "-c", str(config)]
        policy = at.folder / f"policy-{at.port}.yaml"
        policy.write_text(RULES if self.is_repairing else NO_RULES)
        if self.given is not None:
            return _filled(self.given, at, policy)
        command = [sys.executable, "-m", "proxy", "serve", "-c", str(policy), "--port", str(at.port)]
        command += ["--admin-port", str(at.admin_port), "--backend", f"http://127.0.0.1:{at.backend_port}"]
        return [*command, "--workers", str(self.workers), "--drain-grace", "0s", "--drain-timeout", "1s"]


def contenders(others: list[str]) -> list[Contender]:
    """Return who can be measured here; each of `others` is NAME=COMMAND, of a proxy with the same rules."""
    field = [Contender(NGINX)] if nginx_binary() else []
    field += [Contender(PRODUCT, is_repairing=True), Contender(BARE)]
    if _can_work_in_two():
        field.append(Contender(WORKERS, is_repairing=True, workers=2))
    for other in others:
        name, _, command = other.partition("=")
        field.append(Contender(name.strip(), is_repairing=True, given=command))
    return field


def nginx_binary() -> str | None:
    """Return where nginx is installed; on some systems only the administrator's path has it."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")


def _can_work_in_two() -> bool:
    """Return whether this proxy takes two workers: it says then that an empty policy is bad, not that its flag is."""
    said = subprocess.run(  # noqa: S603 the command is this project's own
        [sys.executable, "-m", "proxy", "serve", "--workers", "2", "-c", os.devnull], capture_output=True, check=False
    )
    return said.returncode == COULD_NOT_START


def _filled(command: str, at: Address, policy: Path) -> list[str]:
    """Return a command's words, what it is told in braces filled in."""
    values = {"{port}": str(at.port), "{admin_port}": str(at.admin_port), "{policy}": str(policy)}
    values["{backend}"] = f"http://127.0.0.1:{at.backend_port}"
    words = shlex.split(command)
    for name, value in values.items():
        words = [word.replace(name, value) for word in words]
    return words
