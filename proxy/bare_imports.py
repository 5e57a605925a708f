"""Packages of others, imported without what nobody here asks them for; before anything else imports them.

aiohttp reads the system's trusted certificates, twice, for sessions that are given no context of their own: 2 MB, and a
twentieth of a second. Backends are spoken to by contexts of `tls`; those of aiohttp trust nobody then.

structlog takes rich, where somebody has it, to show tracebacks: 3 MB. None is ever logged.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _nothing_trusted() -> Iterator[None]:
    """Let OpenSSL find nothing where it looks for the system's certificates."""
    paths = ssl.get_default_verify_paths()
    names = (paths.openssl_cafile_env, paths.openssl_capath_env)
    kept = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, os.devnull))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(kept)


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
    with _nothing_trusted():
        import aiohttp  # noqa: F401 that it is imported is what is wanted

with _without("rich"):
    import structlog  # noqa: F401 as above
