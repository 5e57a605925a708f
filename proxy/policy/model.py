"""The compiled policy: one immutable value, swapped by reference. Units: `_s` seconds, `_bytes` bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.errors import Fault
from proxy.frames import Frames
from proxy.policy.index import RuleIndex
from proxy.policy.rule import OnError, Rule

__all__ = ["Backend", "Limits", "OnError", "Policy", "Rule", "Timeouts"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for a backend."""

    connect_s: float
    first_content_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may take; `total_bytes` and `connections` are for all, of each process."""

    body_bytes: int
    response_bytes: int
    event_bytes: int
    branches: int
    total_bytes: int
    connections: int


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend, with the rules for it in the order of evaluation: its presets', then the policy's."""

    name: str
    url: str
    models: tuple[str, ...]
    takes_model: Callable[[str], bool]
    api_key: str | None
    timeouts: Timeouts
    max_concurrency: int
    presets: tuple[str, ...]
    index: RuleIndex

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, in the order of evaluation."""
        return self.index.rules


@dataclass(frozen=True, slots=True)
class Policy:
    """All that a request has to know. `effective` is the policy as YAML values, with secrets hidden.

    `frames` remembers of what bodies look like, which is faster than to parse each, and tells the same.
    """

    backends: tuple[Backend, ...]
    limits: Limits
    auth_keys: frozenset[str]
    keep_alive_s: float
    sha256: str
    warnings: tuple[Fault, ...]
    effective: Mapping[str, Any]
    frames: Frames = field(default_factory=Frames, compare=False, repr=False)

    def backend_for(self, model: str | None) -> Backend | None:
        """Return the backend that serves the model; without a model the first."""
        if model is None:
            return self.backends[0]
        for backend in self.backends:
            if backend.takes_model(model):
                return backend
        return None
