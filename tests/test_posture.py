"""The posture at start: what is told of a policy and of flags, and what of that is risky."""

import pytest

from proxy.options import Options
from proxy.policy import load_policy
from proxy.posture import is_loopback, is_private, posture
from proxy.tls import Tls

KEY = "SECRET-key"
BACKENDS = """
backends:
  embedded: {url: standin://sglang, models: [tiny]}
  near: {url: "http://sglang:30000", models: [near], api_key: "${KEY}"}
  far: {url: "https://api.example/v1", api_key: "${KEY}"}
"""
OPEN = "version: 1\n" + BACKENDS
KEYED = OPEN + 'auth: {keys: ["${KEY}"]}\n'
EXPOSED = "version: 1\nbackends: {main: {url: '${URL}', api_key: '${KEY}'}}\n"
SERVED = {"cert": "c", "key": "k"}


def of(text, url="http://backend", **given):
    policy = load_policy("policy.yaml", environ={"KEY": KEY, "URL": url}, text=text)
    return posture(policy, Options("policy.yaml", **given))


TOLD = [
    pytest.param(OPEN, {}, {"client_auth": "off"}, id="no key is asked for"),
    pytest.param(KEYED, {}, {"client_auth": "on"}, id="a key is asked for"),
    pytest.param(OPEN, {}, {"tls": "off"}, id="the data port is plain"),
    pytest.param(OPEN, {"tls": Tls(**SERVED)}, {"tls": "on"}, id="the data port speaks TLS"),
    pytest.param(OPEN, {"tls": Tls(**SERVED, client_ca="a")}, {"tls": "mutual"}, id="clients show certificates"),
    pytest.param(
        OPEN,
        {},
        {
            "backends": {
                "embedded": {"scheme": "standin", "verified": False, "key": False, "certificate": False},
                "near": {"scheme": "http", "verified": False, "key": True, "certificate": False},
                "far": {"scheme": "https", "verified": True, "key": True, "certificate": False},
            }
        },
        id="each backend, and whether it has a key",
    ),
    pytest.param(
        EXPOSED,
        {"url": "https://a.example", "tls": Tls(backend_insecure=True, backend_cert="c", backend_key="k")},
        {"backends": {"main": {"scheme": "https", "verified": False, "key": True, "certificate": True}}},
        id="a backend that is not verified and is shown a certificate",
    ),
    pytest.param(
        OPEN, {}, {"admin": "127.0.0.1:8081", "admin_reach": "this machine"}, id="the admin port is this machine's"
    ),
    pytest.param(
        OPEN,
        {"admin_host": "0.0.0.0", "admin_port": 9},
        {"admin": "0.0.0.0:9", "admin_reach": "beyond this machine"},
        id="the admin port is everybody's",
    ),
    pytest.param(OPEN, {"admin_host": "::1"}, {"admin": "[::1]:8081"}, id="an address of IPv6"),
    pytest.param(OPEN, {}, {"learned": None, "data_path": "direct"}, id="nothing is kept"),
    pytest.param(OPEN, {"learned": "/var/learned"}, {"learned": "/var/learned"}, id="what is learned is kept"),
    pytest.param(OPEN, {"learned": "/var/a", "is_learned_kept": False}, {"learned": None}, id="only meanwhile"),
    pytest.param(OPEN, {"data_path": "session"}, {"data_path": "session"}, id="the other data path"),
]


@pytest.mark.parametrize(("text", "given", "expected"), TOLD)
def test_what_is_told(text, given, expected):
    told = of(text, **given).told
    assert {name: told[name] for name in expected} == expected


RISKS = [
    pytest.param(OPEN, {}, [], id="this machine's alone, without a key"),
    pytest.param(KEYED, {"host": "0.0.0.0"}, [], id="everybody, with a key"),
    pytest.param(OPEN, {"host": "0.0.0.0"}, ["auth.keys is empty"], id="everybody, without a key"),
    pytest.param(OPEN, {"host": ""}, ["auth.keys is empty"], id="all addresses, without a key"),
    pytest.param(OPEN, {"host": "::", "tls": Tls(**SERVED)}, ["auth.keys is empty"], id="TLS alone lets anybody in"),
    pytest.param(OPEN, {"host": "::", "tls": Tls(**SERVED, client_ca="a")}, [], id="mutual TLS does not"),
    pytest.param(OPEN, {"admin_host": "10.0.0.1"}, ["the admin port"], id="the admin port beyond this machine"),
    pytest.param(OPEN, {"tls": Tls(backend_insecure=True)}, ["NO BACKEND'S CERTIFICATE IS VERIFIED"], id="insecure"),
    pytest.param(EXPOSED, {"url": "http://api.example"}, ["backend main: its api_key"], id="a key by http, far"),
    pytest.param(EXPOSED, {"url": "http://8.8.8.8:80"}, ["backend main: its api_key"], id="a key to a public address"),
    pytest.param(EXPOSED, {"url": "http://10.1.2.3"}, [], id="a key by http, near"),
    pytest.param(EXPOSED, {"url": "https://api.example"}, [], id="a key by https"),
    pytest.param(EXPOSED.replace("${KEY}", ""), {"url": "http://api.example"}, [], id="no key by http"),
    pytest.param(
        EXPOSED,
        {"url": "http://8.8.8.8", "host": "0.0.0.0", "admin_host": "0.0.0.0"},
        ["auth.keys is empty", "the admin port", "backend main: its api_key"],
        id="all at once",
    ),
]


@pytest.mark.parametrize(("text", "given", "expected"), RISKS)
def test_what_is_risky(text, given, expected):
    risks = of(text, **given).risks
    assert len(risks) == len(expected)
    assert [word for word, risk in zip(expected, risks, strict=True) if word not in risk] == []


@pytest.mark.parametrize("text", [OPEN, KEYED, EXPOSED])
def test_no_key_is_told(text):
    assert KEY not in str(of(text, host="0.0.0.0", url="http://api.example"))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("a.localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.1.1", False),
        ("host.example", False),
        ("localhost.example", False),
    ],
)
def test_which_addresses_are_this_machines_alone(host, expected):
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("10.0.0.1", True),
        ("172.16.0.1", True),
        ("192.168.0.1", True),
        ("100.64.0.1", True),
        ("169.254.1.1", True),
        ("fe80::1%eth0", True),
        ("fd00::1", True),
        ("sglang", True),
        ("localhost", True),
        ("sglang.models.svc", True),
        ("sglang.models.svc.cluster.local", True),
        ("sglang.models.svc.mine.example", True),
        ("gpu.internal", True),
        ("gpu.local.", True),
        ("8.8.8.8", False),
        ("2001:4860:4860::8888", False),
        ("api.example", False),
        ("local.example", False),
    ],
)
def test_which_backends_are_of_a_network_of_ones_own(host, expected):
    assert is_private(host) is expected
