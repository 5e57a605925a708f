"""The house itself: locks, layers, container and compose files are what they promise, and name nobody's machine."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from proxy.cli import serve_command

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("requirements.lock", "requirements-build.lock", "requirements-dev.lock")
RUNTIME = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["fast"]
BUILD = PROJECT["build-system"]["requires"]
DEVELOPMENT = PROJECT["dependency-groups"]["dev"]


def entries_of(lock: str) -> list[str]:
    """Return a lock's entries, each on one line: `name==version --hash=… --hash=…`."""
    lines = (ROOT / lock).read_text().replace("\\\n", " ").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def pins_of(lock: str) -> dict[str, str]:
    return dict(entry.split()[0].split("==") for entry in entries_of(lock))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_entry_of_a_lock_is_one_version_with_hashes_and_nothing_else(lock):
    entry = re.compile(r"[a-z0-9-]+==[\w.+!]+( +--hash=sha256:[0-9a-f]{64})+ *")
    assert [line for line in entries_of(lock) if not entry.fullmatch(line)] == []
    assert len(entries_of(lock)) == len(pins_of(lock)) > 0


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_address_not_even_in_a_comment(lock):
    assert re.findall(r"://|file:|--(?!hash=)\S+|(?m:^-\S)", (ROOT / lock).read_text()) == []


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        pytest.param("requirements.lock", RUNTIME, id="the runtime lock has what the package imports"),
        pytest.param("requirements-build.lock", BUILD, id="the build lock has the build backend"),
        pytest.param("requirements-dev.lock", RUNTIME + BUILD + DEVELOPMENT, id="the development lock has all"),
    ],
)
def test_a_lock_agrees_with_pyproject(lock, wanted):
    pins = pins_of(lock)
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pins.get(canonicalize_name(requirement.name), "0")), str(requirement)


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-build.lock"])
def test_development_uses_the_versions_that_are_shipped(lock):
    assert pins_of(lock).items() <= pins_of("requirements-dev.lock").items()


def test_imports_go_down_only():
    # In a process of its own: it sets up logging, which would silence the loggers of the tests that follow.
    lint = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(  # noqa: S603 the command is this test's own
        [*lint, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def instructions_of(dockerfile: str) -> list[tuple[str, str]]:
    """Return (instruction, arguments) in the order of the file, continued lines joined."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / dockerfile).read_text()).replace("\\\n", " ")
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())]


DOCKERFILE = instructions_of("Dockerfile")
FINAL = DOCKERFILE[max(index for index, (name, _) in enumerate(DOCKERFILE) if name == "FROM") :]


def final(name: str) -> list[str]:
    return [rest for instruction, rest in FINAL if instruction == name]


def test_the_image_has_two_stages_of_one_base():
    assert [rest for name, rest in DOCKERFILE if name == "FROM"] == ["python:3.13-slim AS build", "python:3.13-slim"]


def test_the_image_runs_as_a_user_that_is_known_not_to_be_root_by_its_number():
    user, group = final("USER")[-1].split(":")
    assert int(user) > 0
    assert int(group) > 0


def test_the_image_ends_on_sigterm_which_drains():
    assert final("STOPSIGNAL") == ["SIGTERM"]


def test_the_image_says_how_it_is_and_needs_no_shell_for_it():
    _, command = final("HEALTHCHECK")[-1].split("CMD ")
    assert json.loads(command) == ["mendproxy", "health"]


def test_the_image_serves_its_policy_to_other_machines():
    assert json.loads(final("ENTRYPOINT")[-1]) == ["mendproxy"]
    assert json.loads(final("CMD")[-1]) == ["serve"]
    environment = {name: value for line in final("ENV") for name, _, value in (x.partition("=") for x in line.split())}
    assert environment["MENDPROXY_CONFIG"] == "/etc/mendproxy/policy.yaml"
    assert environment["MENDPROXY_HOST"] == "0.0.0.0"
    assert final("EXPOSE")[-1].split() == ["8080", "8081"]


def test_everything_that_is_installed_into_the_image_is_checked_against_a_hash_or_built_here():
    runs = " && ".join(rest for name, rest in DOCKERFILE if name == "RUN").split("&&")
    installs = [run for run in runs if " install " in run]
    assert len(installs) == 3
    assert [run for run in installs if not {"--require-hashes", "--no-index"} & set(shlex.split(run))] == []


def test_what_the_image_copies_is_let_through_to_its_build():
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [shlex.split(rest)[:-1] for name, rest in DOCKERFILE if name == "COPY" and "--from" not in rest]
    assert {source for sources in copies for source in sources} == let_through


COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
PROXIES = ("mendproxy", "mendproxy-standin")


@pytest.mark.parametrize("name", PROXIES)
def test_the_composed_proxy_can_change_nothing(name):
    service = COMPOSE[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["volumes"] == ["./config:/etc/mendproxy:ro"]


@pytest.mark.parametrize("name", PROXIES)
def test_the_composed_proxy_is_given_the_time_to_drain(name):
    minutes = re.fullmatch(r"(\d+)m", COMPOSE[name]["stop_grace_period"])[1]
    assert int(minutes) > 10


@pytest.mark.parametrize("name", PROXIES)
def test_the_admin_port_is_published_to_this_machine_alone(name):
    assert COMPOSE[name]["ports"] == ["8080:8080", "127.0.0.1:8081:8081"]
    assert COMPOSE[name]["environment"]["MENDPROXY_ADMIN_HOST"] == "0.0.0.0"


@pytest.mark.parametrize("name", PROXIES)
def test_what_the_composed_proxy_is_told_is_heard(name):
    heard = set(re.findall(r"\$\{(\w+)", (ROOT / "config" / "policy.yaml").read_text()))
    heard |= {option.envvar for option in serve_command.params if option.envvar}
    assert COMPOSE[name]["environment"].keys() <= heard


def test_the_stand_in_starts_by_its_profile_alone_and_waits_for_nobody():
    assert COMPOSE["mendproxy-standin"]["profiles"] == ["standin"]
    assert COMPOSE["mendproxy-standin"]["environment"]["BACKEND_URL"] == "standin://sglang"
    assert "depends_on" not in COMPOSE["mendproxy-standin"]


def test_the_proxy_waits_until_sglang_is_healthy():
    assert "profiles" not in COMPOSE["mendproxy"]
    assert COMPOSE["mendproxy"]["depends_on"] == {"sglang": {"condition": "service_healthy"}}
    assert COMPOSE["mendproxy"]["environment"]["BACKEND_URL"] == "http://sglang:30000"


def test_sglang_is_a_pinned_release_that_may_take_its_time_to_load():
    assert re.fullmatch(r"lmsysorg/sglang:v\d+\.\d+\.\d+", COMPOSE["sglang"]["image"])
    assert COMPOSE["sglang"]["healthcheck"]["start_period"] == "30m"
    assert COMPOSE["sglang"]["ipc"] == "host"


def test_the_gate_can_be_run():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


# What may stand in no file, in pieces so that this one passes: who serves packages, and where somebody's files lie.
HOSTS = ["pypi" + r"\.org", "python" + "hosted", "index" + "-url", "find" + "-links", "trusted" + "-host"]
FOLDERS = r"(?<![\w.~})/*-])/(?:work|tmp|srv|home|Users|opt/pypi|opt/wheels)/\w"
FOREIGN = re.compile(rf"(?<!--no-emit-)(?:{'|'.join(HOSTS)})|{FOLDERS}|{'file:' + '//'}/\w".encode())


def files_of_the_repository() -> list[Path]:
    """Return the files that are or could be committed; the ignored ones are all folders, by `.gitignore`."""
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()] + [".git"]
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not any(fnmatch(name, pattern) for pattern in ignored)]
        found += [Path(folder, name) for name in names]
    return found


def test_no_file_names_a_package_index_or_a_folder_of_somebodys_machine():
    files = [path for path in files_of_the_repository() if path.is_file()]
    assert ROOT / "pyproject.toml" in files
    found = {str(path.relative_to(ROOT)): FOREIGN.findall(path.read_bytes()) for path in files}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("https://py" + "pi.org/simple", id="an index"),
        pytest.param("--extra-index" + "-url x", id="an option that names an index"),
        pytest.param("see /ho" + "me/ada/notes", id="a home folder"),
        pytest.param('"/t' + 'mp/x"', id="a scratch folder"),
    ],
)
def test_a_foreign_word_is_found(text):
    assert FOREIGN.search(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("--no-emit-index" + "-url", id="the option that leaves the index out"),
        pytest.param("GET /v1/work/items", id="a path of an API"),
        pytest.param("/etc/mendproxy/policy.yaml", id="a path of the image"),
    ],
)
def test_an_innocent_word_is_let_through(text):
    assert not FOREIGN.search(text.encode())
