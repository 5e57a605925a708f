"""The README's examples, run as they stand: commands and what they print, policies, code."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.policy import load_policy

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[str]:
    return [text for name, text in BLOCKS if name == kind]


def commands() -> list[tuple[str, str]]:
    """Return each command of the console blocks with what it prints."""
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines()
            ends = 1 + next(i for i, line in enumerate(lines) if _is_whole("\n".join(lines[: i + 1])))
            found.append(("\n".join(lines[:ends]), "\n".join(lines[ends:])))
    return found


def _is_whole(command: str) -> bool:
    return not command.endswith("\\") and command.count("'") % 2 == 0


def pattern(printed: str) -> re.Pattern[str]:
    """Return what the printed text looks like: `…` is any text, on a line of its own any lines."""
    escaped = re.escape(printed.strip()).replace("\\\n", "\n")
    escaped = re.sub(r"^…$", r"(?:.*)", escaped, flags=re.MULTILINE)
    return re.compile(escaped.replace("…", "[^\n]*"), re.DOTALL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, str]]:
    """A proxy as `make run` starts it, on free ports."""
    data, admin = _free_port(), _free_port()
    command = [sys.executable, "-m", "proxy", "serve", "-c", "config/policy.yaml"]
    command += ["--port", str(data), "--admin-port", str(admin), "--drain-grace", "0s"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stderr is not None
        assert any('"serving"' in line for line in iter(process.stderr.readline, "")), "it did not start"
        yield {"8080": str(data), "8081": str(admin)}
        process.terminate()
        process.stderr.read()
        assert process.wait(20) == 0


def with_ports(text: str, ports: dict[str, str]) -> str:
    return re.sub(r"(?<=127\.0\.0\.1:)(8080|8081)", lambda match: ports[match[1]], text)


@pytest.mark.parametrize(("command", "printed"), commands(), ids=[command[:40] for command, _ in commands()])
def test_a_command_prints_what_the_readme_says(command: str, printed: str, ports: dict[str, str]) -> None:
    shell = f'mendproxy() {{ "{sys.executable}" -m proxy "$@"; }}\n{with_ports(command, ports)}'
    done = subprocess.run(  # noqa: S603
        ["bash", "-c", shell],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert pattern(printed).fullmatch(done.stdout.replace("\r", "").strip()), done.stdout + done.stderr


def test_the_code_runs(ports: dict[str, str]) -> None:
    [code] = blocks("python")
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", with_ports(code, ports)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_the_policy_is_good() -> None:
    [text] = blocks("yaml")
    policy = load_policy("README.md", environ={}, text=text)
    assert policy.warnings == ()
    assert [rule.id for rule in policy.backends[0].rules][-1] == "sampling-fields-dropped"


def test_what_make_is_asked_for_can_be_made() -> None:
    named = set(re.findall(r"(?:^|`|=\S+ )make ([a-z-]+)", README, re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named <= targets


def test_files_that_are_named_are_there() -> None:
    named = set(re.findall(r"\]\(([^)#:]+)\)", README))
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_every_repair_is_in_the_table() -> None:
    from proxy.repairs import REPAIRS

    table = README.split("## The repairs")[1].split("## ")[0]
    assert {name for name in REPAIRS if not re.search(rf"`{name}\b", table)} == set()
