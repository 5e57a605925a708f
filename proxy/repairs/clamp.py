"""Hold numbers within limits, and texts and lists within a length.

## What it does

A number below `min` becomes `min`, one above `max` becomes `max`; an integer stays an integer where the limit is one. A
text keeps its first `max_length` characters, a list its first `max_length` elements. Values of another type (a boolean
is no number) and absent fields are left alone: nothing is added.

## When a backend needs it

It refuses values out of its range (`temperature: 3`, `max_tokens: 200000`, forty `stop` strings).

## What the client loses

What it asked for beyond the limit; of numbers the sentence says old and new ("max_tokens 200000 becomes 32768").

## Options

A mapping of paths to limits: `min`, `max` (numbers, or `{field: other.path}`, which is no limit where that field is no
number), `max_length`. Where both apply and `min` is above `max`, `max` wins. A numeral such as `"512"` is a number too,
so that a reactive rule can take the limit from the backend's refusal: `max: "{limit}"`, or `max: "{limit} - {used}"`
where it says two.

## Example

```yaml
clamp:
  max_tokens: {max: 32768}
  temperature: {min: 0, max: 2}
  min_tokens: {max: {field: max_tokens}}
  stop: {max_length: 4}
```
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from pydantic import AfterValidator, Field, RootModel, WithJsonSchema, model_validator

from proxy.body import Body
from proxy.fields import Path, Place, first, parse_path
from proxy.matching.values import Number, is_number
from proxy.repairs.card import Act, Card, Target
from proxy.repairs.chains import Link, refuse_chains, refuse_crossing
from proxy.repairs.edits import in_turn
from proxy.repairs.losses import join_losses, plain, replaced
from proxy.repairs.options import STRICT, FieldPath, Options, check_path, misfit
from proxy.repairs.places import Slot, present
from proxy.repairs.values import Changes, is_reference
from proxy.repairs.writes import put_all

_NUMERAL: Final = re.compile(r"-?\d{1,15}(\.\d{1,15})?")
_DIFFERENCE: Final = re.compile(rf"(?P<whole>{_NUMERAL.pattern}) - (?P<part>{_NUMERAL.pattern})")
_CAPTURE: Final = r"\{[A-Za-z_]\w*\}"  # in a policy's text; filled in before it is read here
_TERM: Final = rf"({_NUMERAL.pattern}|{_CAPTURE})"


def _limit(raw: Any) -> Any:
    if is_number(raw) and math.isfinite(raw):
        return raw
    if isinstance(raw, str) and number_of(raw) is not None:
        return str(raw)
    if not is_reference(raw):
        raise misfit([((), "a limit is a number or {field: other.path}")], raw)
    path = check_path(raw["field"], "field")
    if path.is_plural:
        raise misfit([(("field",), f"{path} names many fields: only one can be a limit")], raw)
    return raw


Limit = Annotated[
    Any,
    AfterValidator(_limit),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number"},
                {"type": "string", "pattern": rf"^{_TERM}( - {_TERM})?$"},
                {"type": "object", "properties": {"field": {"type": "string"}}, "required": ["field"]},
            ]
        }
    ),
]


class Limits(Options):
    """The limits of one field."""

    min: Limit = Field(default=None, description="The least number.")
    max: Limit = Field(default=None, description="The greatest number.")
    max_length: int | None = Field(default=None, ge=0, description="The most characters or elements.")

    @model_validator(mode="after")
    def _makes_sense(self) -> Limits:
        if self.min is None and self.max is None and self.max_length is None:
            raise misfit([((), "no limit is given: say min, max or max_length")])
        least, most = number_of(self.min), number_of(self.max)
        if least is not None and most is not None and least > most:
            raise misfit([(("min",), f"min {least} is above max {most}")])
        return self


class ClampOptions(RootModel[dict[FieldPath, Limits]]):
    """The limits."""

    model_config = STRICT

    root: dict[FieldPath, Limits] = Field(min_length=1, description="Field paths and their limits.")

    @model_validator(mode="after")
    def _has_no_chain(self) -> ClampOptions:
        refuse_chains([Link.of((text,), text, [limits.min, limits.max]) for text, limits in self.root.items()])
        refuse_crossing(list(self.root), may_nest=True)
        return self


def number_of(limit: Any) -> Number | None:
    """Return the limit where it is a number or its numeral; None where it is looked up."""
    if is_number(limit):
        return limit
    if not isinstance(limit, str):
        return None
    if found := _DIFFERENCE.fullmatch(limit):
        return _numeral(found["whole"]) - _numeral(found["part"])
    return _numeral(limit) if _NUMERAL.fullmatch(limit) else None


def _numeral(text: str) -> Number:
    return float(text) if "." in text else int(text)


class Bound(msgspec.Struct, frozen=True):
    """One limit, compiled: a number, or the path of one."""

    number: Number | None
    path: Path | None

    @classmethod
    def of(cls, raw: Any) -> Bound:
        """Return the limit as the policy says it."""
        return cls(number_of(raw), parse_path(raw["field"]) if is_reference(raw) else None)

    def at(self, body: Mapping[str, Any]) -> Number | None:
        """Return the limit for this body; None where there is none."""
        if self.path is None:
            return self.number
        value = first(body, self.path)
        return value if is_number(value) else None


class Clamp(msgspec.Struct, frozen=True):
    """One entry, compiled."""

    path: Path
    least: Bound
    most: Bound
    max_length: int | None

    @classmethod
    def of(cls, text: str, limits: Limits) -> Clamp:
        """Return the entry of a path and its limits."""
        return cls(parse_path(text), Bound.of(limits.min), Bound.of(limits.max), limits.max_length)

    def run(self, body: Body) -> tuple[Body, str | None]:
        """Return the body within the limits, and what that loses; the same body where it was."""
        least, most = self.least.at(body), self.most.at(body)
        values: dict[Place, Any] = {}
        numbers: Changes = []
        cuts: list[str] = []
        for slot in present(body, self.path):
            new = self._new(slot, least, most)
            if new is slot.value:
                continue
            values[slot.place] = new
            if is_number(new):
                numbers.append((slot.value, new))
            else:
                cuts.append(f"{plain(self.path.text)} cut to {self.max_length} {_unit(new)}")
        return put_all(body, values), join_losses([replaced(self.path.text, numbers), *cuts])

    def _new(self, slot: Slot, least: Number | None, most: Number | None) -> Any:
        value = slot.value
        if is_number(value):
            return _held(value, least, most)
        if self.max_length is not None and isinstance(value, str | list) and len(value) > self.max_length:
            return value[: self.max_length]
        return value


def _held(value: Number, least: Number | None, most: Number | None) -> Number:
    held = value
    if least is not None and held < least:
        held = least
    if most is not None and held > most:
        held = most
    if held == value:
        return value
    return int(held) if isinstance(value, int) and held == int(held) else held


def _unit(value: Any) -> str:
    return "characters" if isinstance(value, str) else "elements"


def build(options: ClampOptions) -> Act:
    """Return the act."""
    # A list is cut before what is inside it, so that `[-1]` is an element that stays.
    entries = sorted(options.root.items(), key=lambda entry: len(parse_path(entry[0]).steps))
    return in_turn([Clamp.of(text, limits).run for text, limits in entries])


def targets(options: ClampOptions) -> list[Target]:
    """Return what the entries work on."""
    return [Target(parse_path(text), options=[limits.min, limits.max]) for text, limits in options.root.items()]


CARD = Card(
    name="clamp",
    options=ClampOptions,
    build=build,
    is_exact=False,
    loses="what was asked for beyond the limits",
    doc=__doc__,
    targets=targets,
)
