"""`mendproxy serve` by TLS: its flags, what it says of files that it can't use, its posture, a renewed certificate."""

import http.client
import json
import os
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

ROOT = Path(__file__).parent.parent
PATIENCE_S = 20.0
POLICY = "version: 1\nbackends: {main: {url: standin://sglang}}\n"
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
HOST = "127.0.0.1"


class Files:
    """A policy, and certificates: `good`, a later one, an expired one, all of one authority; and a client's."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = trustme.CA()
        self.policy = folder / "policy.yaml"
        self.policy.write_text(POLICY)
        self.authority.cert_pem.write_to_path(self["ca.pem"])
        now = datetime.now(UTC)
        self.issue("good")
        self.issue("later")
        self.issue("expired", not_before=now - timedelta(days=9), not_after=now - timedelta(days=2))
        (folder / "bad.key").write_text("-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----\n")

    def __getitem__(self, name):
        return str(self.folder / name)

    def issue(self, name, **times):
        leaf = self.authority.issue_cert(HOST, **times)
        leaf.cert_chain_pems[0].write_to_path(self[f"{name}.pem"])
        leaf.private_key_pem.write_to_path(self[f"{name}.key"])

    def served(self, name="good"):
        return ["--tls-cert", self[f"{name}.pem"], "--tls-key", self[f"{name}.key"]]

    def client(self, name=None):
        context = ssl.create_default_context(cafile=self["ca.pem"])
        if name is not None:
            context.load_cert_chain(self[f"{name}.pem"], self[f"{name}.key"])
        return context

    def der(self, name):
        return ssl.PEM_cert_to_DER_cert(Path(self[f"{name}.pem"]).read_text())


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def ask(proxy, context):
    """Return a new connection's answer to a question, and the certificate that was shown on it."""
    at = urlsplit(proxy.url)
    assert at.scheme == "https"
    connection = http.client.HTTPSConnection(at.hostname, at.port, timeout=PATIENCE_S, context=context)
    try:
        connection.connect()
        shown = connection.sock.getpeercert(binary_form=True)
        connection.request("POST", "/v1/chat/completions", json.dumps(HELLO), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status, shown
    finally:
        connection.close()


def posture_of(proxy):
    """Return what a process that serves has said of its posture."""
    lines = map(json.loads, filter(lambda line: line.startswith("{"), proxy.output))
    [said] = [line for line in lines if line["event"] == "posture"]
    return said


def run(files, *flags, environ=None):
    """Return the exit code and words of a process that does not start."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MENDPROXY_")}
    command = [sys.executable, "-m", "proxy", "serve", "-c", str(files.policy), "--port", "0", "--admin-port", "0"]
    done = subprocess.run(  # noqa: S603 the command is this test's own
        [*command, *flags],
        cwd=ROOT,
        env=own | (environ or {}),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


WORKERS = pytest.mark.parametrize("workers", ["1", "2"], ids=["one process", "two workers"])


@WORKERS
def test_clients_are_served_by_tls_and_a_renewed_certificate_is_shown_after_sighup(serving, files, workers):
    with serving(files.policy, *files.served(), "--workers", workers) as proxy:
        assert ask(proxy, files.client()) == (200, files.der("good"))
        for ending in ("pem", "key"):
            Path(files[f"good.{ending}"]).write_bytes(Path(files[f"later.{ending}"]).read_bytes())
        proxy.send_signal("SIGHUP")
        for _ in range(int(workers)):
            assert proxy.until("tls.renewed")["file"] == files["good.pem"]
        assert ask(proxy, files.client()) == (200, files.der("later"))


def test_a_faulty_renewal_keeps_the_old_certificate_and_is_told(serving, files):
    old = files.der("good")
    with serving(files.policy, *files.served()) as proxy:
        Path(files["good.pem"]).write_bytes(Path(files["later.pem"]).read_bytes())
        proxy.send_signal("SIGHUP")
        assert "is not the key of the certificate in" in proxy.until("tls.kept")["fault"]
        assert ask(proxy, files.client()) == (200, old)


@WORKERS
def test_mutual_tls_refuses_who_shows_no_certificate(serving, files, workers):
    flags = [*files.served(), "--tls-client-ca", files["ca.pem"], "--workers", workers]
    with serving(files.policy, *flags) as proxy:
        with pytest.raises(OSError, match=r"certificate|reset|EOF|closed|Broken pipe"):
            ask(proxy, files.client())
        assert ask(proxy, files.client("later"))[0] == 200


def test_every_flag_is_heard_as_a_variable(serving, files):
    variables = {"CERT": "good.pem", "KEY": "good.key", "CLIENT_CA": "ca.pem"}
    environ = {f"MENDPROXY_TLS_{name}": files[file] for name, file in variables.items()}
    environ |= {"MENDPROXY_BACKEND_CERT": files["good.pem"], "MENDPROXY_BACKEND_KEY": files["good.key"]}
    with serving(files.policy, environ=environ | {"MENDPROXY_BACKEND_INSECURE": "1"}) as proxy:
        posture = posture_of(proxy)
        assert posture["tls"] == "mutual"
        assert "NO BACKEND'S CERTIFICATE IS VERIFIED" in posture["risks"][0]
        assert ask(proxy, files.client("good"))[0] == 200


FAULTY = [
    pytest.param(["--tls-cert", "none.pem", "--tls-key", "good.key"], "--tls-cert {}none.pem: No such", id="not there"),
    pytest.param(
        ["--tls-cert", "good.pem", "--tls-key", "later.key"], "--tls-key {}later.key: is not", id="another key"
    ),
    pytest.param(["--tls-cert", "good.pem", "--tls-key", "bad.key"], "--tls-key {}bad.key: can't be", id="a bad key"),
    pytest.param(
        ["--tls-cert", "expired.pem", "--tls-key", "expired.key"],
        "--tls-cert {}expired.pem: the certificate has",
        id="expired",
    ),
    pytest.param(["--backend-ca", "policy.yaml"], "--backend-ca {}policy.yaml: holds no", id="a CA that is none"),
    pytest.param(
        ["--backend-cert", "good.key", "--backend-key", "good.key"], "--backend-cert {}good.key", id="no cert"
    ),
]


@pytest.mark.parametrize(("flags", "told"), FAULTY)
def test_a_file_that_can_not_be_used_is_told_and_nothing_is_served(files, flags, told):
    code, said = run(files, *(files[word] if not word.startswith("--") else word for word in flags))
    assert code == 3
    assert said.startswith(f"mendproxy: {told.format(f'{files.folder}{os.sep}')}")
    assert len(said.splitlines()) == 1
    assert "SECRET" not in said


def test_a_file_that_workers_can_not_use_is_told_in_the_same_way(files):
    code, said = run(files, *files.served("expired"), "--workers", "2")
    assert code == 3
    assert f"mendproxy: --tls-cert {files['expired.pem']}: the certificate has expired" in said
    assert "Traceback" not in said
    assert '"event":"serving"' not in said


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--tls-cert", "good.pem"], id="a certificate without its key"),
        pytest.param(["--tls-client-ca", "ca.pem"], id="clients' certificates without TLS"),
        pytest.param(["--backend-key", "good.key"], id="a key without its certificate"),
        pytest.param(["--backend-insecure", "--backend-ca", "ca.pem"], id="trust and no trust"),
    ],
)
def test_flags_that_do_not_go_together_are_wrong_usage(files, flags):
    code, said = run(files, *(files[word] if not word.startswith("--") else word for word in flags))
    assert code == 2
    assert said.startswith("Usage:")


def test_the_posture_is_told_once_beside_what_is_served(serving, files):
    with serving(files.policy, *files.served()) as proxy:
        said = posture_of(proxy)
        assert (said["level"], said["tls"], said["client_auth"], said["risks"]) == ("info", "on", "off", [])
        assert said["backends"] == {
            "main": {"scheme": "standin", "verified": False, "key": False, "certificate": False}
        }
        assert said["admin_reach"] == "this machine"


@WORKERS
def test_a_risky_posture_is_a_warning(serving, files, workers):
    with serving(files.policy, "--backend-insecure", "--workers", workers) as proxy:
        said = posture_of(proxy)
        assert (said["level"], len(said["risks"])) == ("warning", 1)
