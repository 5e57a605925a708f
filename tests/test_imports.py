"""What a process imports: what it has no use for costs every start its time, and every process its memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from proxy import cli
from proxy.data_path import DATA_PATHS
from proxy.policy_tests.report import FORMATS

ROOT = Path(__file__).parent.parent
LOADED = "import sys, {module}; print(*sys.modules, sep='\\n')"
TRUSTED = "import {module}, aiohttp.connector as made; print(made._SSL_CONTEXT_VERIFIED.cert_store_stats()['x509'])"


def run(code: str) -> list[str]:
    """Return what a fresh interpreter prints, line by line."""
    done = subprocess.run(  # noqa: S603 the code is this test's own
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


OF_OTHERS = [
    "difflib",
    "frozenlist._frozenlist",
    "prometheus_client",
    "proxy.policy_tests",
    "proxy.standin",
    "rich",
    "xml",
]
CASES = [
    pytest.param("proxy.cli", "click", ["aiohttp", "asyncio", "http.client", "structlog", "uvloop"], id="a command"),
    pytest.param("proxy.serving", "proxy.lane", ["proxy.supervisor", *OF_OTHERS], id="serving"),
    pytest.param("proxy.worker", "proxy.lane", ["click", "proxy.admin", *OF_OTHERS], id="a worker"),
]


@pytest.mark.parametrize(("module", "needed", "needless"), CASES)
def test_a_process_imports_what_it_needs_and_leaves_the_rest(module, needed, needless):
    loaded = run(LOADED.format(module=module))
    assert needed in loaded
    assert [name for name in needless if name in loaded] == []


@pytest.mark.parametrize("module", ["proxy.serving", "proxy.worker"])
def test_the_contexts_of_aiohttp_trust_nobody_where_the_proxy_serves(module):
    assert run(TRUSTED.format(module=module)) == ["0"]


def test_the_environment_is_as_before(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/some/file")
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    told = "import os, proxy.bare_imports as _; print(os.environ.pop('SSL_CERT_FILE'), {names} & set(os.environ))"
    names = {"SSL_CERT_DIR", "FROZENLIST_NO_EXTENSIONS"}
    assert run(told.format(names=names)) == ["/some/file", "set()"]


def test_the_command_offers_the_data_paths_and_forms_of_a_report_that_there_are():
    assert list(cli.DATA_PATHS) == list(DATA_PATHS)
    assert list(cli.REPORT_FORMATS) == list(FORMATS)
