"""A compiled rule: when it is for a request, what it repairs, and after which failures it is tried."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from proxy.matching import Matcher
from proxy.policy.repair import CompiledRepair
from proxy.repairs.card import Act


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
    """A rule under its full id. `place` is file:line:column of where it is written.

    `acts` are the repairs by their names, of those whose options hold no captures.
    """

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
    acts: tuple[tuple[str, Act], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Look the acts up once, for all requests."""
        acts = tuple((repair.name, repair.act) for repair in self.repairs if repair.act is not None)
        object.__setattr__(self, "acts", acts)

    @property
    def is_exact(self) -> bool:
        """Whether the operator states that the client loses nothing."""
        return self.loses == "nothing"
