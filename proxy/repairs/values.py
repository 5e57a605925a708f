"""The values that `set` and `default` write: as they stand, copied from another field, for some elements only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, Field

from proxy.body import Body
from proxy.fields import ABSENT, Path, first, parse_path
from proxy.matching.values import is_same
from proxy.repairs.card import Target
from proxy.repairs.chains import Link
from proxy.repairs.losses import replaced
from proxy.repairs.options import Json, Options, Where, check_path, misfit
from proxy.repairs.places import Condition, Slot, compile_where, slots, split_at_elements, write_into
from proxy.repairs.writes import Editor

Changes = list[tuple[Any, Any]]
"""(old, new) of each place that was written; old is ABSENT where there was nothing."""


class Conditional(Options):
    """A value for some elements only."""

    value: Json = Field(description="The value to write.")
    where: Where | None = Field(default=None, description="Tests on the element, by path relative to it.")


def _value(raw: Any) -> Any:
    if is_conditional(raw):
        Conditional.model_validate(raw)
        _check_reference(raw["value"], "value")
    else:
        _check_reference(raw)
    return raw


def _check_reference(raw: Any, *place: str) -> None:
    if is_reference(raw):
        path = check_path(raw["field"], *place, "field")
        if path.is_plural:
            raise misfit([((*place, "field"), f"{path} names many fields: only one can be copied")], raw)


def is_conditional(raw: Any) -> bool:
    """Return whether the value is in its long form."""
    return isinstance(raw, dict) and "value" in raw and raw.keys() <= {"value", "where"}


def is_reference(raw: Any) -> bool:
    """Return whether the value is that of another field."""
    return isinstance(raw, dict) and set(raw) == {"field"} and isinstance(raw["field"], str)


RawValue = Annotated[Json, AfterValidator(_value)]
"""A value, as the policy says it."""


def _parts(raw: Any) -> tuple[Any, Mapping[str, Any] | None]:
    return (raw["value"], raw.get("where")) if is_conditional(raw) else (raw, None)


def links(options: Mapping[str, Any]) -> list[Link]:
    """Return what each entry writes and reads."""
    return [_link(text, *_parts(raw)) for text, raw in options.items()]


def _link(text: str, value: Any, where: Mapping[str, Any] | None) -> Link:
    return Link.of((text,), text, value if is_reference(value) else None, where)


def element_targets(options: Mapping[str, Any]) -> list[Target] | None:
    """Return the elements that each entry writes into; None where one writes into the body itself."""
    found = [(split_at_elements(parse_path(text))[0], *_parts(raw)) for text, raw in options.items()]
    if not all(elements.steps for elements, _, _ in found):
        return None
    return [Target(elements, where, options=value) for elements, value, where in found]


class Writing(msgspec.Struct, frozen=True):
    """One entry, compiled."""

    path: Path
    value: Any
    source: Path | None
    where: Condition | None
    only_absent: bool

    @classmethod
    def of(cls, text: str, raw: Any, *, only_absent: bool = False) -> Writing:
        """Return the entry of a path and its value."""
        value, where = _parts(raw)
        source = parse_path(value["field"]) if is_reference(value) else None
        return cls(parse_path(text), value, source, compile_where(where), only_absent)

    def run(self, body: Body) -> tuple[Body, str | None]:
        """Return the body with the value written, and what that loses; the same body where nothing was."""
        value = self.value if self.source is None else first(body, self.source)
        if value is ABSENT:
            return body, None
        editor = Editor(body)
        changes: Changes = [
            (slot.value, value)
            for slot in slots(body, self.path, self.where)
            if self._is_due(slot, value) and write_into(editor, slot.place, value)
        ]
        return editor.body(), replaced(self.path.text, changes)

    def _is_due(self, slot: Slot, value: Any) -> bool:
        return slot.value is ABSENT or not (self.only_absent or is_identical(slot.value, value))


def is_identical(one: Any, two: Any) -> bool:
    """Return whether the values are equal and, as numbers, written alike: 1 is not 1.0."""
    return is_same(one, two) and isinstance(one, float) == isinstance(two, float)
