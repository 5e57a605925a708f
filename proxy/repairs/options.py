"""The types that repairs' options are made of: field paths, tests, JSON values, and short forms of longer ones.

Everything is checked here, while the policy is loaded, so that no act meets an option which means nothing. A fault is
a ValidationError whose place is the place in the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, ValidationError, core_schema

from proxy.fields import Path, parse_path
from proxy.matching import BadTest, Problem, compile_test

STRICT: Final = ConfigDict(strict=True, defer_build=True, frozen=True)
"""The configuration of options that are a list or a mapping of the operator's own keys."""


class Options(BaseModel):
    """Options with fixed names. As all others they are built when first met: no policy names every repair."""

    model_config = ConfigDict(strict=True, defer_build=True, frozen=True, extra="forbid")


def misfit(problems: Iterable[Problem], value: Any = None) -> ValidationError:
    """Return the error that puts each problem at its place inside the value that is being validated."""
    return ValidationError.from_exception_data(
        "options",
        [
            InitErrorDetails(type=PydanticCustomError("option", "{why}", {"why": why}), loc=place, input=value)
            for place, why in problems
        ],
    )


@dataclass(frozen=True, slots=True)
class ShortForm:
    """Lets a shorter spelling stand for a mapping: `expand` makes the mapping of it, and leaves all else alone."""

    expand: Callable[[Any], Any]
    schema: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.expand, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [dict(self.schema), handler(schema)]}


def check_path(text: str, *place: str | int) -> Path:
    """Return the path that the text spells.

    Raises: ValidationError at `place`, saying where the text stops being a path.
    """
    try:
        return parse_path(text)
    except ValueError as error:
        raise misfit([(place, str(error))], text) from error


def _any_path(text: str) -> str:
    check_path(text)
    return text


def _field_path(text: str) -> str:
    if not check_path(text).steps:
        raise misfit([((), "'.' is the whole body: name a field of it")], text)
    return text


def _json(value: Any) -> Any:
    """Return the value in JSON's own types; a string that knows where it came from becomes a plain one."""
    if isinstance(value, str):
        return _text(str(value))
    if isinstance(value, list):
        return [_json(item) for item in value]
    if isinstance(value, dict):
        return {_name(key): _json(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise misfit([((), f"{value!r} can't be written as JSON")], value)


def _text(value: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise misfit([((), "half of a surrogate pair can't be written as JSON")], value)
    return value


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise misfit([((), f"{key!r} is no name of a JSON field: put it in quotes")], key)
    return _text(str(key))


def check_test(raw: Any) -> Any:
    """Return the test as it is.

    Raises: ValidationError with every problem of it.
    """
    try:
        compile_test(raw)
    except BadTest as bad:
        raise misfit(bad.problems, raw) from bad
    return raw


AnyPath = Annotated[str, AfterValidator(_any_path)]
"""A field path; `.` is the value itself."""

FieldPath = Annotated[str, AfterValidator(_field_path)]
"""A path to a field of the body."""

Json = Annotated[Any, AfterValidator(_json)]
"""Any JSON value."""

RawTest = Annotated[Any, AfterValidator(_json), AfterValidator(check_test), WithJsonSchema({"format": "test"})]
"""A test, as the policy says it."""

Where = Annotated[dict[AnyPath, RawTest], Field(min_length=1)]
"""Tests by relative path, all of which must hold."""


def references(raw: Any) -> Iterator[str]:
    """Yield the paths that a test or value looks up by `{field: path}`."""
    if isinstance(raw, Mapping):
        if set(raw) == {"field"} and isinstance(raw["field"], str):
            yield raw["field"]
        for item in raw.values():
            yield from references(item)
    elif isinstance(raw, list):
        for item in raw:
            yield from references(item)
