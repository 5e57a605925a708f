"""The two data paths, of which one is chosen at start: `direct`, and `session`, which it is compared with.

    direct   clients and backends on connections of our own, simple requests without a task (lane.py, quick.py)
    session  aiohttp's server, response and client session

What a client and a backend see is the same with both; the tests of the edge run with either.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final, Literal

from aiohttp import web

from proxy.direct import DirectUpstream
from proxy.errors import BackendFault
from proxy.quick import QuickLane
from proxy.server import DataPort
from proxy.session import SessionUpstream
from proxy.tls import Tls, backend_context
from proxy.upstream import Upstream

DataPath = Literal["direct", "session"]
DATA_PATHS: Final[tuple[DataPath, ...]] = ("direct", "session")


def make_upstream(
    path: DataPath, note: Callable[[str, BackendFault | int], None], tls: ssl.SSLContext | None = None
) -> Upstream:
    """Return the way to backends of a data path; `note` is told of each status or fault.

    `tls` is how backends are spoken to by TLS, by default with the system's trust.
    """
    if path == "direct":
        return DirectUpstream(note, tls)
    # aiohttp's own context trusts nobody: see bare_imports.
    return SessionUpstream(note, tls if tls is not None else backend_context(Tls()))


def make_server(port: DataPort) -> web.Server:
    """Return the server of a data port, of the same path as its upstream."""
    upstream = port.upstream
    if not isinstance(upstream, DirectUpstream):
        return port.server()
    quick = QuickLane(port, upstream)
    return port.server(quick.lane, quick)
