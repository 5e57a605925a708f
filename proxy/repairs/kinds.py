"""What a test says of a value's kind alone, so that a field of the body is decoded only where its value decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from proxy.body import Kind, kind_of
from proxy.repairs.values import is_reference

ALL_KINDS: Final[frozenset[Kind]] = frozenset(get_args(Kind))
_NONE: Final[frozenset[Kind]] = frozenset()
_SIZED: Final[frozenset[Kind]] = frozenset({"string", "array", "object"})
_POSSIBLE: Final[Mapping[str, frozenset[Kind]]] = {
    "gt": frozenset({"number"}),
    "ge": frozenset({"number"}),
    "lt": frozenset({"number"}),
    "le": frozenset({"number"}),
    "length": _SIZED,
    "matches": frozenset({"string"}),
    "every": frozenset({"array"}),
}


class Kinds(msgspec.Struct, frozen=True):
    """The kinds of a present value for which a test surely holds, and all those for which it can."""

    sure: frozenset[Kind]
    possible: frozenset[Kind]

    @classmethod
    def of(cls, raw: Any) -> Kinds:
        """Return the kinds of a test, as the policy says it."""
        if not isinstance(raw, Mapping):
            return _equal(raw)
        if is_reference(raw):
            return cls(_NONE, ALL_KINDS)
        parts = [_operator(name, argument) for name, argument in raw.items()]
        return cls(
            ALL_KINDS.intersection(*(part.sure for part in parts)), ALL_KINDS.intersection(*(p.possible for p in parts))
        )


def _equal(raw: Any) -> Kinds:
    kind = frozenset({kind_of(raw)})
    return Kinds(kind if raw is None else _NONE, kind)


def _operator(name: str, argument: Any) -> Kinds:
    if name == "eq":
        return Kinds(_NONE, ALL_KINDS) if is_reference(argument) else _equal(argument)
    if name == "exists":
        return Kinds(ALL_KINDS, ALL_KINDS) if argument else Kinds(_NONE, _NONE)
    if name == "type":
        return _typed(argument if isinstance(argument, list) else [argument])
    return Kinds(_NONE, _POSSIBLE.get(name, ALL_KINDS))


def _typed(names: list[Any]) -> Kinds:
    sure = frozenset(kind for kind in ALL_KINDS if kind in names)
    return Kinds(sure, sure | {"number"} if "integer" in names else sure)
