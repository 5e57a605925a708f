"""What `mendproxy serve` was told, as a value that can be handed to another process; and the policy that it names."""

from __future__ import annotations

import importlib
import importlib.util
import os
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from proxy.data_path import DataPath
from proxy.files import Signature, signature_of
from proxy.log import LogFormat
from proxy.policy import Policy, load_policy
from proxy.policy.yaml_text import decode_text
from proxy.tls import Tls

Traces = Literal["off", "otlp"]


class CannotStart(Exception):
    """A port can't be bound, or a file can't be read."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy and the text that it was made of, from which another process makes the same.

    `signature` is that of the file before it was read.
    """

    policy: Policy
    text: str
    signature: Signature | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """What `mendproxy serve` was told. Units: seconds where a name says so.

    `is_learned_kept`: the file of what was learned outlives the process; another is in a folder that goes with it.
    """

    config: str
    backend: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    admin_host: str = "127.0.0.1"
    admin_port: int = 8081
    workers: int = 1
    log_format: LogFormat = "json"
    log_level: str = "info"
    learned: str | None = None
    is_learned_kept: bool = True
    drain_grace_s: float = 5.0
    drain_timeout_s: float = 600.0
    data_path: DataPath = "direct"
    tls: Tls = field(default_factory=Tls)
    traces: Traces = "off"

    def load(self) -> Loaded:
        """Return the policy of the file as it is now. Raises: PolicyFault, OSError."""
        path = Path(self.config)
        signature = signature_of(path)
        return replace(self.load_text(decode_text(path.read_bytes(), self.config)), signature=signature)

    def load_text(self, text: str) -> Loaded:
        """Return the policy of a text, as if the file had it. Raises: PolicyFault."""
        return Loaded(load_policy(self.config, environ=os.environ, text=text, backend_url=self.backend), text)


def loop_factory() -> Callable[[], AbstractEventLoop] | None:
    """Return uvloop's event loop where it is installed; None is asyncio's own."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory
