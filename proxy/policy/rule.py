"""A compiled rule: when it is for a request, what it repairs, and after which failures it is tried."""

from __future__ import annotations

import re
from dataclasses import dataclass

from proxy.matching import Matcher
from proxy.policy.repair import CompiledRepair


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
