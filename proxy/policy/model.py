"""The compiled policy: one immutable value, swapped by reference. Units: `_s` seconds, `_bytes` bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.errors import Fault
from proxy.matching import Matcher
from proxy.policy.repair import CompiledRepair


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for a backend."""

    connect_s: float
    first_content_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may take."""

    body_bytes: int
    response_bytes: int
    event_bytes: int
    branches: int


@dataclass(frozen=True, slots=True)
class OnError:
    """Which failures a rule is tried after; None, or an empty `stream`, asks nothing.

    `message` is to be searched in the failure's text; the repairs run for each match of `each` in the matched text.
    """

    status: frozenset[int] | None
    message: re.Pattern[str] | None
    each: re.Pattern[str] | None
    code: str | None
    param: str | None
    stream: frozenset[str]
    fewer_choices: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule under its full id. `place` is file:line:column of where it is written."""

    id: str
    about: str | None
    matcher: Matcher
    on_error: OnError | None
    repairs: tuple[CompiledRepair, ...]
    loses: str | None
    mode: str
    learn_for_s: float | None
    learn_approve: bool
    place: str

    @property
    def is_exact(self) -> bool:
        """Whether the operator states that the client loses nothing."""
        return self.loses == "nothing"


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
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """All that a request has to know. `effective` is the policy as YAML values, with secrets hidden."""

    backends: tuple[Backend, ...]
    limits: Limits
    auth_keys: frozenset[str]
    keep_alive_s: float
    sha256: str
    warnings: tuple[Fault, ...]
    effective: Mapping[str, Any]

    def backend_for(self, model: str | None) -> Backend | None:
        """Return the backend that serves the model; without a model the first."""
        if model is None:
            return self.backends[0]
        return next((backend for backend in self.backends if backend.takes_model(model)), None)
