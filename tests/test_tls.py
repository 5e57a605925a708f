"""The files of TLS: what is wrong with one is told by its name and option; a renewed one is shown, a faulty one not."""

import os
import ssl
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import structlog
import trustme

from proxy.tls import Contexts, Tls, TlsFault

NOW = datetime.now(UTC)
MISUSES = [
    pytest.param(Tls(cert="c"), "--tls-cert and --tls-key go together", id="a certificate without its key"),
    pytest.param(Tls(key="k"), "--tls-cert and --tls-key go together", id="a key without its certificate"),
    pytest.param(Tls(client_ca="a"), "--tls-client-ca takes --tls-cert", id="clients' certificates without TLS"),
    pytest.param(Tls(backend_cert="c"), "--backend-cert and --backend-key", id="a backend's certificate alone"),
    pytest.param(Tls(backend_key="k"), "--backend-cert and --backend-key", id="a backend's key alone"),
    pytest.param(Tls(backend_ca="a", backend_insecure=True), "take one of them", id="trust and no trust"),
]
USES = [
    pytest.param(Tls(), id="nothing"),
    pytest.param(Tls(cert="c", key="k"), id="TLS"),
    pytest.param(Tls(cert="c", key="k", client_ca="a"), id="TLS both ways"),
    pytest.param(Tls(backend_ca="a", backend_cert="c", backend_key="k"), id="a backend by TLS both ways"),
    pytest.param(Tls(backend_insecure=True, backend_cert="c", backend_key="k"), id="known to a backend of any name"),
]


class Folder:
    """Files of all kinds, good and bad."""

    def __init__(self, path):
        self.path = path
        self.authority = trustme.CA()
        self.good = self.issue("good")
        self.issue("other")
        self.issue("expired", not_before=NOW - timedelta(days=9), not_after=NOW - timedelta(days=2))
        self.issue("early", not_before=NOW + timedelta(days=2), not_after=NOW + timedelta(days=9))
        self.authority.cert_pem.write_to_path(str(path / "ca.pem"))
        self.write("empty.pem", b"")
        self.write("garbage.pem", b"\xff\x00garbage")
        self.write("damaged.pem", b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
        self.write("damaged.key", b"-----BEGIN PRIVATE KEY-----\nZZSECRET\n-----END PRIVATE KEY-----\n")
        whole = (path / "good.pem").read_bytes() + (path / "good.key").read_bytes()
        self.write("both.pem", whole)
        (path / "folder").mkdir()
        self.encrypt()

    def issue(self, name, **times):
        leaf = self.authority.issue_cert("localhost", **times)
        leaf.cert_chain_pems[0].write_to_path(str(self.path / f"{name}.pem"))
        leaf.private_key_pem.write_to_path(str(self.path / f"{name}.key"))
        return leaf

    def write(self, name, content):
        (self.path / name).write_bytes(content)

    def encrypt(self):
        command = ["openssl", "pkey", "-in", "good.key", "-aes256", "-passout", "pass:SECRET", "-out", "encrypted.key"]
        subprocess.run(command, cwd=self.path, check=True, capture_output=True)  # noqa: S603 the command is this test's own

    def tls(self, **names):
        return Tls(**{name: str(self.path / file) for name, file in names.items()})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize(("tls", "told"), MISUSES)
def test_options_that_do_not_go_together_are_told(tls, told):
    assert told in tls.misuse


@pytest.mark.parametrize("tls", USES)
def test_options_that_go_together_are_taken(tls):
    assert tls.misuse is None


PAIRS = [
    pytest.param("none.pem", "good.key", "cert none.pem: No such file or directory", id="no certificate there"),
    pytest.param("good.pem", "none.key", "key none.key: No such file or directory", id="no key there"),
    pytest.param("folder", "good.key", "cert folder: Is a directory", id="a folder for a certificate"),
    pytest.param("good.pem", "folder", "key folder: Is a directory", id="a folder for a key"),
    pytest.param("empty.pem", "good.key", "cert empty.pem: holds no certificate in PEM form", id="an empty file"),
    pytest.param("garbage.pem", "good.key", "cert garbage.pem: holds no certificate in PEM form", id="garbage"),
    pytest.param("damaged.pem", "good.key", "cert damaged.pem: holds no certificate in PEM form", id="damaged"),
    pytest.param(
        "good.key", "good.key", "cert good.key: holds no certificate in PEM form", id="a key for a certificate"
    ),
    pytest.param(
        "good.pem", "good.pem", "key good.pem: holds no private key in PEM form", id="a certificate for a key"
    ),
    pytest.param(
        "good.pem", "garbage.pem", "key garbage.pem: holds no private key in PEM form", id="garbage for a key"
    ),
    pytest.param("good.pem", "damaged.key", "key damaged.key: can't be used with good.pem (", id="a damaged key"),
    pytest.param(
        "good.pem", "other.key", "key other.key: is not the key of the certificate in good.pem", id="another key"
    ),
    pytest.param(
        "good.pem", "encrypted.key", "key encrypted.key: the key is encrypted; give one without", id="a passphrase"
    ),
    pytest.param("expired.pem", "expired.key", "cert expired.pem: the certificate has expired (20", id="expired"),
    pytest.param(
        "early.pem", "early.key", "cert early.pem: the certificate is not valid yet (from 20", id="not valid yet"
    ),
]


@pytest.mark.parametrize(
    "side",
    [
        pytest.param(("cert", "key", "--tls-"), id="of the data port"),
        pytest.param(("backend_cert", "backend_key", "--backend-"), id="for backends"),
    ],
)
@pytest.mark.parametrize(("cert", "key", "told"), PAIRS)
def test_a_certificate_or_key_that_can_not_be_used_is_told_by_option_and_file(folder, side, cert, key, told):
    cert_name, key_name, option = side
    with pytest.raises(TlsFault) as raised:
        Contexts(folder.tls(**{cert_name: cert, key_name: key}))
    said = str(raised.value).replace(f"{folder.path}{os.sep}", "")
    assert said.startswith(option + told)
    assert "SECRET" not in said
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(("option", "name"), [("--tls-client-ca", "client_ca"), ("--backend-ca", "backend_ca")])
@pytest.mark.parametrize(
    ("file", "told"),
    [
        pytest.param("none.pem", "No such file or directory", id="not there"),
        pytest.param("empty.pem", "holds no certificate in PEM form", id="empty"),
        pytest.param("garbage.pem", "holds no certificate in PEM form", id="garbage"),
        pytest.param("good.key", "holds no certificate in PEM form", id="a key"),
        pytest.param("damaged.pem", "can't be used (", id="damaged"),
    ],
)
def test_a_ca_that_can_not_be_used_is_told_by_option_and_file(folder, option, name, file, told):
    with pytest.raises(TlsFault) as raised:
        Contexts(folder.tls(cert="good.pem", key="good.key", **{name: file}))
    assert str(raised.value).startswith(f"{option} {folder.path / file}: {told}")


def test_a_certificate_and_its_key_may_be_in_one_file(folder):
    assert Contexts(folder.tls(cert="both.pem", key="both.pem")).served is not None


def test_sides_without_tls_of_their_own_have_no_context(folder):
    contexts = Contexts(Tls())
    assert (contexts.served, contexts.backend) == (None, None)


def test_nothing_older_than_tls_1_2_is_spoken_and_backends_are_verified_by_name(folder):
    contexts = Contexts(folder.tls(cert="good.pem", key="good.key", client_ca="ca.pem", backend_ca="ca.pem"))
    assert contexts.served.minimum_version == contexts.backend.minimum_version == ssl.TLSVersion.TLSv1_2
    assert contexts.served.verify_mode == contexts.backend.verify_mode == ssl.CERT_REQUIRED
    assert contexts.backend.check_hostname
    assert [known["serialNumber"] for known in contexts.backend.get_ca_certs()] == [
        known["serialNumber"] for known in contexts.served.get_ca_certs()
    ]
    assert len(contexts.backend.get_ca_certs()) == 1


def shown(context, authority):
    """Return the certificate that a context shows, in DER, by a handshake in memory."""
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.getpeercert(binary_form=True)


def der(folder, name):
    return ssl.PEM_cert_to_DER_cert((folder.path / f"{name}.pem").read_text())


@pytest.fixture
def renewed(folder, tmp_path):
    """Return a certificate of the data port whose files the test replaces."""
    tls = Tls(cert=str(tmp_path / "tls.pem"), key=str(tmp_path / "tls.key"))

    def put(cert, key):
        (tmp_path / "tls.pem").write_bytes((folder.path / cert).read_bytes())
        (tmp_path / "tls.key").write_bytes((folder.path / key).read_bytes())

    put("good.pem", "good.key")
    return Contexts(tls), put


def test_a_renewed_certificate_is_shown_on_new_connections(folder, renewed):
    contexts, put = renewed
    assert shown(contexts.served, folder.authority) == der(folder, "good")
    put("other.pem", "other.key")
    with structlog.testing.capture_logs() as logged:
        contexts.renew()
    assert shown(contexts.served, folder.authority) == der(folder, "other")
    [line] = logged
    assert (line["event"], line["log_level"]) == ("tls.renewed", "info")
    assert datetime.fromisoformat(line["until"]) > NOW


@pytest.mark.parametrize(
    ("cert", "key"),
    [
        pytest.param("other.pem", "good.key", id="the certificate is new, the key is not yet"),
        pytest.param("good.pem", "other.key", id="the key is new, the certificate is not yet"),
        pytest.param("empty.pem", "good.key", id="it is being written"),
        pytest.param("expired.pem", "expired.key", id="it has expired"),
    ],
)
def test_a_faulty_renewal_keeps_the_old_certificate_and_is_told(folder, renewed, cert, key):
    contexts, put = renewed
    put(cert, key)
    with structlog.testing.capture_logs() as logged:
        contexts.renew()
    assert shown(contexts.served, folder.authority) == der(folder, "good")
    [line] = logged
    assert (line["event"], line["log_level"]) == ("tls.kept", "error")
    assert line["fault"].startswith(("--tls-cert", "--tls-key"))


def test_what_backends_are_shown_is_renewed_too(folder, renewed, tmp_path):
    _, put = renewed
    tls = Tls(backend_cert=str(tmp_path / "tls.pem"), backend_key=str(tmp_path / "tls.key"))
    contexts = Contexts(replace(tls, backend_ca=str(folder.path / "ca.pem")))
    put("other.pem", "other.key")
    with structlog.testing.capture_logs() as logged:
        contexts.renew()
    assert [line["event"] for line in logged] == ["tls.renewed"]
