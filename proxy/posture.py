"""How open a process that starts is: who may come in by which port, how backends are reached, what of it is risky.

Pure: told from the policy and what `mendproxy serve` was told; no name is resolved, no file read. A key is never told,
only whether there is one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from proxy.options import Options
from proxy.policy import Backend, Policy
from proxy.tls import Tls

# Names that no public DNS leads from: RFC 6761 §6.3, RFC 6762 §3, ICANN's resolution of 2024 (internal), Kubernetes.
_LOCAL_ENDINGS = (".localhost", ".local", ".internal", ".svc", ".home.arpa")


@dataclass(frozen=True, slots=True)
class Posture:
    """What the log tells of it, and what of that is risky, in words."""

    told: dict[str, Any]
    risks: tuple[str, ...]


def posture(policy: Policy, options: Options) -> Posture:
    """Return how a process that serves by these stands."""
    told = {
        "client_auth": "on" if policy.auth_keys else "off",
        "tls": _of_the_data_port(options.tls),
        "backends": {backend.name: _of_backend(backend, options.tls) for backend in policy.backends},
        "admin": _place(options.admin_host, options.admin_port),
        "admin_reach": "this machine" if is_loopback(options.admin_host) else "beyond this machine",
        "learned": options.learned if options.is_learned_kept else None,
        "data_path": options.data_path,
    }
    return Posture(told, tuple(_risks(policy, options)))


def _of_the_data_port(tls: Tls) -> Literal["off", "on", "mutual"]:
    if tls.cert is None:
        return "off"
    return "on" if tls.client_ca is None else "mutual"


def _of_backend(backend: Backend, tls: Tls) -> dict[str, Any]:
    scheme = urlsplit(backend.url).scheme
    return {
        "scheme": scheme,
        "verified": scheme == "https" and not tls.backend_insecure,
        "key": bool(backend.api_key),
        "certificate": scheme == "https" and tls.backend_pair is not None,
    }


def _risks(policy: Policy, options: Options) -> Iterator[str]:
    if not policy.auth_keys and options.tls.client_ca is None and not is_loopback(options.host):
        yield f"anybody who reaches {options.host} is served: auth.keys is empty"
    if not is_loopback(options.admin_host):
        yield f"the admin port has no authentication, and is open to anybody who reaches {options.admin_host}"
    if options.tls.backend_insecure:
        yield "--backend-insecure: NO BACKEND'S CERTIFICATE IS VERIFIED; who is in between reads keys and prompts"
    for backend in policy.backends:
        at = urlsplit(backend.url)
        if at.scheme == "http" and backend.api_key and not is_private(at.hostname or ""):
            yield f"backend {backend.name}: its api_key goes to {at.hostname} by http, for anybody on the way to read"


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is this machine's alone. An empty one is all addresses."""
    address = _address(host)
    return address.is_loopback if address is not None else _is_named_local(host)


def is_private(host: str) -> bool:
    """Return whether a backend's address is of a network of one's own, as far as its form tells.

    A name of one label (as in Compose and Kubernetes) is; so are the endings that public DNS does not know.
    """
    address = _address(host)
    if address is not None:
        return not address.is_global
    name = host.lower().rstrip(".")
    return "." not in name or name.endswith(_LOCAL_ENDINGS) or ".svc." in name


def _is_named_local(host: str) -> bool:
    name = host.lower().rstrip(".")
    return name == "localhost" or name.endswith(".localhost")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped if mapped is not None else address


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
