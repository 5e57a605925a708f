"""The command: arguments, what it prints and where, exit codes."""

import json
import logging
import socket
import threading
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner

from proxy import __version__
from proxy.cli import main
from proxy.policy import load_policy
from proxy.repairs import REPAIRS

ROOT = Path(__file__).parent.parent
GOOD = """
version: 1
backends: {main: {url: standin://sglang}}
rules:
  - {id: sharp, when: {body: {sharp: true}}, repair: [drop: [sharp]]}
"""
FAULTY = """
version: 1
backends: {main: {url: standin://sglang, presets: [sglnag]}}
rules:
  - {id: sharp, repair: [fanout: {}]}
"""
FAULTS = [
    '3:52: unknown preset "sglnag": did you mean "sglang"?',
    '5:26: unknown repair "fanout": did you mean "fan_out"?',
]
DOUBTFUL = GOOD + "  - {id: never, when: {body: {n: {gt: 2, lt: 1}}}, repair: [drop: [n]]}\n"
SECRET = """
version: 1
backends: {main: {url: "http://b", api_key: "sk-literal"}, other: {url: "http://c", api_key: "${TEST_KEY}"}}
auth: {keys: [client-key, "${TEST_KEY:-fallback-key}"]}
"""
SHARP = {"model": "m", "sharp": True}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return what runs the command in a directory of its own, which has good.yaml, faulty.yaml and doubtful.yaml."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOST", "PORT", "CONFIG", "BACKEND", "ADMIN_URL"):
        monkeypatch.delenv(f"MENDPROXY_{name}", raising=False)
    for name, text in (("good", GOOD), ("faulty", FAULTY), ("doubtful", DOUBTFUL), ("secret", SECRET)):
        Path(f"{name}.yaml").write_text(text)
    Path("sharp.json").write_text(json.dumps(SHARP))

    def invoke(*arguments, stdin=None, environ=None):
        result = CliRunner().invoke(main, list(map(str, arguments)), input=stdin, env=environ)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield invoke
    # `serve` has set the log up for a process of its own.
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


# check

CHECKED = [
    pytest.param(["good.yaml"], 0, "good.yaml: good: 1 backend, 1 rule\n", id="a good policy"),
    pytest.param(
        ["faulty.yaml"], 1, "".join(f"faulty.yaml:{fault}\n" for fault in FAULTS), id="every fault, with its place"
    ),
    pytest.param(
        ["doubtful.yaml"],
        0,
        "doubtful.yaml:6:34: the rule can never fire: no value passes this test (warning)\n"
        "doubtful.yaml: good: 1 backend, 2 rules\n",
        id="a warning is no fault",
    ),
    pytest.param(
        ["faulty.yaml", "good.yaml"],
        1,
        "".join(f"faulty.yaml:{fault}\n" for fault in FAULTS) + "good.yaml: good: 1 backend, 1 rule\n",
        id="several files",
    ),
    pytest.param(
        ["faulty.yaml", "--format", "github"],
        1,
        "".join(
            f"::error file=faulty.yaml,line={place[0]},col={place[1]}::{text.strip()}\n"
            for place, text in ((fault.split(":", 2)[:2], fault.split(":", 2)[2]) for fault in FAULTS)
        ),
        id="for GitHub",
    ),
]


@pytest.mark.parametrize(("arguments", "code", "output"), CHECKED)
def test_a_policy_is_checked(run, arguments, code, output):
    result = run("check", *arguments)
    assert (result.exit_code, result.output) == (code, output)


def test_warnings_can_be_denied(run):
    assert run("check", "--deny-warnings", "doubtful.yaml").exit_code == 1
    assert run("check", "--deny-warnings", "good.yaml").exit_code == 0


def test_a_check_for_scripts(run):
    result = run("check", "--format", "json", "faulty.yaml", "doubtful.yaml")
    rows = json.loads(result.output)
    assert result.exit_code == 1
    assert all(row.keys() == {"severity", "file", "line", "column", "message"} for row in rows)
    places = [(row["severity"], row["file"], row["line"], row["column"]) for row in rows]
    assert places == [
        ("error", "faulty.yaml", 3, 52),
        ("error", "faulty.yaml", 5, 26),
        ("warning", "doubtful.yaml", 6, 34),
    ]
    assert json.loads(run("check", "--format", "json", "good.yaml").output) == []


def test_a_policy_is_checked_from_stdin(run):
    assert run("check", "-", stdin=GOOD).output == "-: good: 1 backend, 1 rule\n"
    result = run("check", "-", stdin=FAULTY)
    assert (result.exit_code, result.output) == (1, "".join(f"-:{fault}\n" for fault in FAULTS))


@pytest.mark.parametrize("name", ["-", "latin.yaml"])
def test_a_policy_that_is_no_utf_8_is_a_fault_with_a_place(run, name):
    raw = b"version: 1\nbackends: {caf\xe9: {}}\n"
    Path("latin.yaml").write_bytes(raw)
    result = run("check", name, stdin=raw)
    assert (result.exit_code, result.output) == (1, f"{name}:2:15: not UTF-8: save the file in that encoding\n")


def test_a_file_s_name_can_t_break_out_of_a_workflow_command(run):
    name = "a,b%.yaml"
    Path(name).write_text(FAULTY)
    assert run("check", "--format", "github", name).output.startswith("::error file=a%2Cb%25.yaml,line=3,col=52::")


def test_the_example_of_the_design_is_good(run):
    result = run("check", "--deny-warnings", ROOT / "tests" / "policy" / "example.yaml")
    assert result.exit_code == 0, result.output


def test_the_policy_that_is_shipped_is_good(run):
    result = run("check", "--deny-warnings", ROOT / "config" / "policy.yaml")
    assert (result.exit_code, result.output.count("\n")) == (0, 1)


# Usage

USAGE = [
    pytest.param(["check"], id="check without a file"),
    pytest.param(["check", "missing.yaml"], id="check of a file that isn't there"),
    pytest.param(["check", "."], id="check of a directory"),
    pytest.param(["check", "good.yaml", "--format", "xml"], id="an unknown format"),
    pytest.param(["explain", "-c", "missing.yaml", "sharp.json"], id="explain without a policy"),
    pytest.param(["explain", "-c", "good.yaml", "missing.json"], id="explain of a file that isn't there"),
    pytest.param(["explain", "-c", "good.yaml", "--header", "no colon", "sharp.json"], id="a header without a colon"),
    pytest.param(["show", "-c", "missing.yaml"], id="show without a policy"),
    pytest.param(["repairs", "dorp"], id="an unknown repair"),
    pytest.param(["presets", "sglnag"], id="an unknown preset"),
    pytest.param(["serve", "--workers", "0"], id="no workers"),
    pytest.param(["serve", "--port", "70000"], id="no such port"),
    pytest.param(["serve", "-c", "good.yaml", "--drain-grace", "soon"], id="no duration"),
    pytest.param(["serve", "-c", "good.yaml", "--log-format", "xml"], id="an unknown log format"),
    pytest.param(["serve", "good.yaml"], id="an argument too many"),
    pytest.param(["frobnicate"], id="an unknown command"),
]


@pytest.mark.parametrize("arguments", USAGE)
def test_wrong_usage_is_told_on_stderr(run, arguments):
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr


# Could not start


def taken_port(stack_socket):
    stack_socket.bind(("127.0.0.1", 0))
    stack_socket.listen()
    return stack_socket.getsockname()[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["-c", "missing.yaml"], "missing.yaml: No such file or directory", id="no policy"),
        pytest.param(["-c", "faulty.yaml"], "faulty.yaml:" + "\nfaulty.yaml:".join(FAULTS), id="a faulty policy"),
        pytest.param(
            ["-c", "good.yaml", "--backend", "ftp://x"], "--backend:1:1: expected http://host", id="no backend's url"
        ),
        pytest.param(
            ["-c", "good.yaml", "--port", "0", "--admin-port", "TAKEN"], "can't listen on 127.0.0.1:", id="admin port"
        ),
        pytest.param(
            ["-c", "good.yaml", "--port", "TAKEN", "--admin-port", "0"], "can't listen on 127.0.0.1:", id="data port"
        ),
        pytest.param(
            ["-c", "good.yaml", "--port", "TAKEN", "--admin-port", "0", "--workers", "2"],
            "can't listen on 127.0.0.1:",
            id="data port, for workers",
        ),
        pytest.param(
            ["-c", "good.yaml", "--port", "0", "--admin-port", "TAKEN", "--workers", "2"],
            "can't listen on 127.0.0.1:",
            id="admin port, with workers",
        ),
        pytest.param(
            ["-c", "faulty.yaml", "--workers", "2"],
            "faulty.yaml:" + "\nfaulty.yaml:".join(FAULTS),
            id="a faulty policy, with workers",
        ),
        pytest.param(
            ["-c", "good.yaml", "--port", "0", "--admin-port", "0", "--learned", "good.yaml"],
            "good.yaml:2:1: expected a list of learned rules",
            id="a file of what was learned that is none",
        ),
    ],
)
def test_a_proxy_that_can_t_start_says_why_and_exits_with_3(run, arguments, said):
    with closing(socket.socket()) as other:
        port = taken_port(other)
        result = run("serve", *[str(port) if argument == "TAKEN" else argument for argument in arguments])
    assert result.exit_code == 3
    assert said in result.stderr
    assert "Traceback" not in result.output


# explain


def test_an_explanation_for_people(run):
    result = run("explain", "-c", "good.yaml", "sharp.json")
    assert result.exit_code == 0
    assert "fired  sharp  drop (loses: field sharp)\n" in result.stdout
    assert 'Mendproxy-Repairs: sharp;loss="field sharp"\n' in result.stdout


@pytest.mark.parametrize("arguments", [["-"], []], ids=["named", "by default"])
def test_an_explanation_for_scripts_of_stdin(run, arguments):
    result = run("explain", "-c", "good.yaml", "--json", *arguments, stdin=json.dumps(SHARP))
    assert result.exit_code == 0
    assert json.loads(result.stdout)["after"] == [{"model": "m"}]


def test_an_explanation_of_another_request(run):
    Path("good.yaml").write_text(
        "version: 1\nbackends: {main: {url: http://b}}\n"
        "rules: [{id: a, when: {path: /x, method: PUT, header: {y: z}, query: {q: '1'}}, repair: [drop: [sharp]]}]\n"
    )
    asked = ["explain", "-c", "good.yaml", "--json", "--path", "/x?q=1", "--method", "PUT", "sharp.json"]
    assert json.loads(run(*asked, "--header", "Y:  z ").stdout)["rules"][0]["fired"] is True
    assert json.loads(run(*asked).stdout)["rules"][0]["fired"] is False


@pytest.mark.parametrize("command", [["explain", "sharp.json"], ["show"]], ids=["explain", "show"])
def test_a_faulty_policy_is_told_on_stderr(run, command):
    result = run(command[0], "-c", "faulty.yaml", *command[1:])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "".join(f"faulty.yaml:{fault}\n" for fault in FAULTS)


# show


def test_what_is_shown_loads_again_and_does_the_same(run):
    shown = run("show", "-c", ROOT / "tests" / "policy" / "example.yaml").stdout
    Path("shown.yaml").write_text(shown)
    first = load_policy(ROOT / "tests" / "policy" / "example.yaml", environ={})
    again = load_policy("shown.yaml", environ={})
    assert [rule.id for rule in again.backends[0].rules] == [rule.id for rule in first.backends[0].rules]
    assert "sglang/meta-info-streamed" in shown
    assert "sglang/top-p-zero" not in shown
    assert (again.limits, again.keep_alive_s) == (first.limits, first.keep_alive_s)
    assert run("show", "-c", "shown.yaml").stdout == shown


def test_what_is_shown_hides_secrets(run):
    shown = run("show", "-c", "secret.yaml", environ={"TEST_KEY": "sk-from-env"}).stdout
    for secret in ("sk-literal", "sk-from-env", "client-key", "fallback-key"):
        assert secret not in shown
    assert shown.count("${TEST_KEY") == 2


def test_a_secret_in_a_faulty_policy_is_not_told(run):
    Path("secret.yaml").write_text(SECRET.replace("version: 1", "version: 2").replace('"sk-literal"', "[sk-literal]"))
    result = run("check", "secret.yaml", environ={"TEST_KEY": "sk-from-env"})
    assert result.exit_code == 1
    assert ":3:" in result.output
    assert not any(secret in result.output for secret in ("sk-literal", "sk-from-env", "client-key", "fallback-key"))


# Variables


def test_the_policy_s_file_can_be_named_by_a_variable(run):
    result = run("show", environ={"MENDPROXY_CONFIG": "good.yaml"})
    assert result.exit_code == 0
    assert "sharp" in result.stdout
    assert run("show", "-c", "faulty.yaml", environ={"MENDPROXY_CONFIG": "good.yaml"}).exit_code == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CONFIG", "missing.yaml"),
        ("BACKEND", "ftp://x"),
        ("HOST", "256.0.0.1"),
        ("PORT", "many"),
        ("ADMIN_HOST", "256.0.0.1"),
        ("ADMIN_PORT", "many"),
        ("WORKERS", "none"),
        ("DATA_PATH", "odd"),
        ("LOG_FORMAT", "xml"),
        ("LOG_LEVEL", "loud"),
        ("DRAIN_GRACE", "soon"),
        ("DRAIN_TIMEOUT", "late"),
    ],
)
def test_every_flag_of_serve_has_a_variable(run, name, value):
    environ = {"MENDPROXY_CONFIG": "good.yaml", "MENDPROXY_PORT": "0", "MENDPROXY_ADMIN_PORT": "0"}
    result = run("serve", environ=environ | {f"MENDPROXY_{name}": value})
    assert result.exit_code in (2, 3)
    assert value in result.stderr or name == "BACKEND"


# repairs, presets, version


def test_all_repairs_are_listed_and_each_is_told(run):
    listed = run("repairs").stdout.splitlines()
    assert [line.split()[0] for line in listed] == sorted(REPAIRS)
    for name in REPAIRS:
        assert "## Options" in run("repairs", name).stdout


def test_all_presets_are_listed_and_each_can_be_read(run):
    names = run("presets").stdout.split()
    assert {"llamafactory", "sglang"} <= set(names)
    for name in names:
        assert f"preset: {name}\n" in run("presets", name).stdout


def test_the_version_is_told(run):
    assert run("version").stdout == f"mendproxy {__version__}\n"


@pytest.mark.parametrize("command", ["check", "explain", "health", "presets", "repairs", "serve", "show", "version"])
def test_each_command_has_help(run, command):
    result = run(command, "-h")
    assert result.exit_code == 0
    assert f"Usage: main {command}" in result.stdout


# health


class Ready(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self):
        body = f"{self.path}\n".encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


class NotReady(Ready):
    status = 503


class NoHttp(Ready):
    def handle(self):
        self.wfile.write(b"220 mail.example ESMTP\r\n")


@contextmanager
def admin_port(handler):
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        thread.join()


@pytest.mark.parametrize(
    ("handler", "code", "said"),
    [
        pytest.param(Ready, 0, "/readyz?verbose\n", id="ready"),
        pytest.param(NotReady, 1, "/readyz?verbose\n", id="not ready"),
    ],
)
@pytest.mark.parametrize("slash", ["", "/"])
def test_the_health_of_a_proxy_is_its_exit_code(run, handler, code, said, slash):
    with admin_port(handler) as url:
        result = run("health", url + slash, environ={"http_proxy": "http://127.0.0.1:1"})
    assert (result.exit_code, result.stdout) == (code, said)


def test_the_admin_port_can_be_named_by_a_variable(run):
    with admin_port(Ready) as url:
        assert run("health", environ={"MENDPROXY_ADMIN_URL": url}).exit_code == 0


def test_a_port_that_speaks_no_http_is_not_healthy(run):
    with admin_port(NoHttp) as url:
        result = run("health", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"mendproxy: {url}: ")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://[::1"])
def test_a_proxy_that_isn_t_there_is_not_healthy(run, url):
    result = run("health", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"mendproxy: {url}: ")
