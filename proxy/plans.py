"""What the engine hands to the edge: a request, what is to be done for it, what each rule did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import structs

from proxy.body import Body, Pieces
from proxy.errors import ProxyError
from proxy.headers import Headers
from proxy.matching import Facts
from proxy.policy import Backend, Rule
from proxy.repairs.card import Draft, Undo
from proxy.spread import Spread

Kind = Literal["chat", "text"]
Usage = Literal["once", "sum"]


_NOTHING = Body.of({})


class Request(msgspec.Struct, frozen=True):
    """What the client sent. `body` is None when it is not read but streamed on. A struct, as Plan is."""

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes | None


class Applied(msgspec.Struct, frozen=True):
    """A rule that did something. `loses` is None when the client can't tell the difference. A struct, as Plan is."""

    rule: str
    repairs: tuple[str, ...]
    loses: str | None = None
    warning: str | None = None


class Restore(msgspec.Struct, frozen=True):
    """How the branches' answers become the one that the client asked for. A struct, as Plan is."""

    kind: Kind | None
    stream: bool
    include_usage: bool
    spreads: tuple[Spread, ...] = (Spread(1),)
    total: int | None = None
    concurrency: int = 0
    usage: Usage = "once"
    model: str = ""
    undos: tuple[Callable[[], Undo], ...] = ()
    asked: int = 0  # how many choices a single branch was asked for, where rules know what to do about fewer


@dataclass(frozen=True, slots=True)
class Reaction:
    """What a reactive rule made of a refusal: enough to write the rule that repairs such a request beforehand.

    `repairs` are the entries of its `repair` with the refusal's captures filled in; `fields` the top-level fields that
    they changed.
    """

    rule: Rule
    status: int | None
    repairs: tuple[dict[str, Any], ...]
    fields: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """What is to be done. `bodies` is empty when the client's own bytes go on; `refusal` ends it before any branch.

    `may_react`: a reactive rule could still apply. `skipped`: learned rules left out, to see whether they are needed.
    A struct, as Facts is: one is made for each request.
    """

    backend: Backend
    facts: Facts
    draft: Draft
    bodies: tuple[bytes | Pieces, ...] = ()
    restore: Restore | None = None
    applied: tuple[Applied, ...] = ()
    observed: tuple[Applied, ...] = ()
    refusal: ProxyError | None = None
    tried: frozenset[str] = frozenset()
    is_strict: bool = False
    may_react: bool = False
    reactions: tuple[Reaction, ...] = ()
    skipped: frozenset[str] = frozenset()

    @property
    def is_untouched(self) -> bool:
        """Whether the client's own bytes go upstream."""
        if self.refusal is not None:
            return False
        return not self.bodies or (not self.draft.body.is_edited and self.bodies == (self.draft.body.source,))

    def without_body(self) -> Plan:
        """Return the plan of a request whose body nobody asks for any more."""
        facts, draft = structs.replace(self.facts, body=None), Draft(_NOTHING, self.draft.path)
        return structs.replace(self, facts=facts, draft=draft, bodies=())

    @property
    def asks_for_stream(self) -> bool:
        """Whether the body that goes upstream asks for a stream; one whose field can't be read does not."""
        return self.draft.body.is_true("stream")

    @property
    def kind(self) -> Kind | None:
        """What the request's path answers with; None for a path that has no chunks."""
        return kind_of(self.facts.path)


class Step(msgspec.Struct, frozen=True):
    """What a rule did with a request, for `explain`. `miss` is the first check that failed and the value it met.

    A struct, as Plan is.
    """

    rule: Rule
    applied: Applied | None = None
    miss: tuple[str, Any] | None = None
    note: str = ""


def kind_of(path: str) -> Kind | None:
    """Return the kind of completion that a path answers with, wherever it is mounted."""
    if path.endswith("/chat/completions"):
        return "chat"
    return "text" if path.endswith("/completions") else None
