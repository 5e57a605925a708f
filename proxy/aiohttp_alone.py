"""aiohttp, imported without the system's trusted certificates. To be imported before anything else imports aiohttp.

aiohttp reads them twice when it is imported, for sessions that are given no context of their own: 2 MB, and a twentieth
of a second. Nobody here asks for them, since backends are spoken to by contexts of `tls`. Somebody who did would find
that they trust nobody.
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


if "aiohttp" not in sys.modules:
    with _nothing_trusted():
        import aiohttp  # noqa: F401 that it is imported is what is wanted
