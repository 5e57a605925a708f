"""Packages of others, imported without what nobody here asks them for; before anything else imports them.

aiohttp reads the system's trusted certificates, twice, for sessions that are given no context of their own: 2 MB, and a
twentieth of a second. Backends are spoken to by contexts of `tls`; those of aiohttp trust nobody then.

frozenlist's compiled half takes the library of C++ into the process: 1 MB. What aiohttp keeps in one here is asked for
nowhere on a request's way.

structlog takes rich, where somebody has it, to show tracebacks: 3 MB. None is ever logged.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _environ(said: dict[str, str]) -> Iterator[None]:
    """Let variables of the environment say something else."""
    kept = {name: os.environ[name] for name in said if name in os.environ}
    os.environ.update(said)
    try:
        yield
    finally:
        for name in said:
            del os.environ[name]
        os.environ.update(kept)


def _nothing_trusted() -> dict[str, str]:
    """Return what lets OpenSSL find nothing where it looks for the system's certificates."""
    paths = ssl.get_default_verify_paths()
    return {paths.openssl_cafile_env: os.devnull, paths.openssl_capath_env: os.devnull}


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Let a package not be found, where it is not imported yet."""
    sys.modules.setdefault(package, None)  # type: ignore[arg-type] # how an import is told that there is none
    try:
        yield
    finally:
        if sys.modules[package] is None:
            del sys.modules[package]


if "aiohttp" not in sys.modules:
    with _environ(_nothing_trusted() | {"FROZENLIST_NO_EXTENSIONS": "1"}):
        import aiohttp  # noqa: F401 that it is imported is what is wanted

with _without("rich"):
    import structlog  # noqa: F401 as above
