"""What a repair is: a card that says all about it, and the act that the card builds from a rule's options.

A repair is a pair. Its request half edits the draft of a plan; what has to be undone on the answer it leaves in the
draft (`answer`, `fan`, `split`, `undos`), where the engine reads it when every rule has run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
from pydantic import BaseModel

from proxy.body import Body
from proxy.fields import Path

EXISTS: Final[Mapping[str, Any]] = {"exists": True}


class Answer(msgspec.Struct, frozen=True):
    """The shape in which the client wants its answer, once a repair asks the backend for another.

    A struct, as Draft is.
    """

    stream: bool
    include_usage: bool = False


class Fan(msgspec.Struct, frozen=True):
    """How one request becomes n branches. A struct, as Draft is. Source: design §7."""

    n: int
    concurrency: int = 0  # branches in flight at a time; 0 = all
    seed: str = "increment"  # or "same"
    usage: str = "once"  # or "sum": prompt tokens of every branch
    copies: int = 1  # choices made of each branch's answer: n when a greedy answer is replicated


@dataclass(frozen=True, slots=True)
class Split:
    """How the list in a field becomes branches of at most `size` elements each."""

    field: str
    size: int
    concurrency: int = 0
    is_bare: bool = False  # a group of one is sent as the element itself


class Undo(Protocol):
    """The answer half of a repair, at work on the answer of one branch. What it is handed it must not change.

    Undos run in the reverse order of the request halves, on the backend's own choices, before branches are merged.
    """

    @property
    def is_done(self) -> bool:
        """Whether the rest of the branch's stream is not wanted, so that its connection may be closed."""

    def chunk(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Return a chunk of a streamed answer (on other paths: the JSON object of an event) as the client gets it."""

    def answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return a whole answer as the client gets it."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """The request is answered 400 by the proxy itself."""

    message: str
    param: str | None = None
    code: str | None = None


class Draft(msgspec.Struct, frozen=True):
    """A plan in the making: the request as the rules so far left it, and what the answer will need.

    A struct, as Facts is: one is made for each request, and another for each repair.
    """

    body: Body
    path: str = "/v1/chat/completions"
    max_branches: int = 16
    answer: Answer | None = None
    fan: Fan | None = None
    split: Split | None = None
    undos: tuple[Callable[[], Undo], ...] = ()
    rejection: Rejection | None = None


class Change(msgspec.Struct, frozen=True):
    """What a repair did. `loses` is None when the client can't tell the difference; `warning` is only told."""

    draft: Draft
    loses: str | None = None
    warning: str | None = None


Act = Callable[[Draft], Change | None]
"""A repair with its options filled in; None where it found nothing to do."""


class FrameAct:
    """An act that looks at nothing of a body but the fields around its messages, so that what it does can be kept."""

    __slots__ = ("act",)

    def __init__(self, act: Act) -> None:
        self.act = act

    def __call__(self, draft: Draft) -> Change | None:
        """Do it."""
        return self.act(draft)


@dataclass(frozen=True, slots=True)
class Target:
    """What one entry of a repair works on; where the body has no such thing it does nothing.

    `test` is asked of the field, `where` of the element that the path's last wildcard names (without one: the body).
    `options` are further parts of the entry that may name fields to be read.
    """

    path: Path
    where: Mapping[str, Any] | None = None
    test: Any = field(default_factory=lambda: EXISTS)
    options: Any = None


def always(_options: Any) -> None:
    """Return that it can't be told beforehand whether a repair will do anything."""


@dataclass(frozen=True, slots=True)
class Card:
    """All that is known of a repair: for the registry, the policy's loader, the docs and the schema.

    `build` gets an instance of `options` and returns the act. `is_exact` is None where that depends on the request.
    `targets` returns what the entries work on, for a repair that does nothing without any of it; None where the repair
    does more than edit these fields.
    """

    name: str
    options: type[BaseModel]
    build: Callable[[Any], Act]
    is_exact: bool | None
    loses: str
    doc: str
    targets: Callable[[Any], list[Target] | None] = always
