"""Image and Compose files agree on user, health and what may be written."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
[USER] = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
COMPOSED = [
    pytest.param(service, id=f"{file.relative_to(ROOT)} {name}")
    for file in (ROOT / "docker-compose.yml", ROOT / "deploy" / "compose" / "docker-compose.yaml")
    for name, service in yaml.safe_load(file.read_text())["services"].items()
    if name.startswith("mendproxy")
]
# How long `mendproxy health` waits by itself.
HEALTH_S = 5


@pytest.mark.parametrize("service", COMPOSED)
def test_a_composed_proxy_runs_as_the_user_of_the_image_and_writes_to_memory_alone(service):
    assert service["user"] == USER
    assert service["read_only"] is True
    [scratch] = service["tmpfs"]
    assert {"noexec", "nosuid", "nodev"} <= set(scratch.partition(":")[2].split(","))


@pytest.mark.parametrize("service", COMPOSED)
def test_its_health_is_asked_as_the_image_asks_and_waited_for(service):
    check = service["healthcheck"]
    assert check["test"] == ["CMD", "mendproxy", "health"]
    assert int(check["timeout"].removesuffix("s")) > HEALTH_S


def test_the_image_waits_for_its_health_too():
    [seconds] = re.findall(r"^HEALTHCHECK .*--timeout=(\d+)s", DOCKERFILE, re.MULTILINE)
    assert int(seconds) > HEALTH_S
    assert f"timeout={HEALTH_S}" in (ROOT / "proxy" / "cli.py").read_text()


def test_the_image_has_a_folder_for_what_is_learned_that_its_user_may_write():
    assert f"chown {USER} /var/lib/mendproxy" in DOCKERFILE
    page = (ROOT / "docs" / "operating.md").read_text()
    assert "-v mendproxy:/var/lib/mendproxy -e MENDPROXY_LEARNED=/var/lib/mendproxy/learned" in page
