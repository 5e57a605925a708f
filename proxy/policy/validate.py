"""Raw value → an instance of a pydantic model, or every problem of it.

An expanded variable stands where a number or boolean is due (`max_concurrency: ${MAX:-4}`) as what it would be if it
were written there; everywhere else it stays a string.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from proxy.matching import KEY, BadTest, Expanded
from proxy.policy.scalars import BadScalar, read_scalar
from proxy.policy.words import problems_of

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


def validated(model: type[M], raw: Any) -> M:
    """Return the model's instance.

    Raises: BadTest with every problem.
    """

    def validate(value: Any) -> M:
        try:
            return model.model_validate(value)
        except ValidationError as error:
            raise BadTest(problems_of(error, model, raw)) from error

    return with_typed_variables(validate, raw)


def with_typed_variables(compile_raw: Callable[[Any], T], raw: Any) -> T:
    """Return what the compiler makes of the raw value, expanded variables typed where it has no use for a string.

    Raises: BadTest, in whose messages a variable stands as it was written.
    """
    try:
        return compile_raw(raw)
    except BadTest as bad:
        problems = bad.problems
    typed = _typed(raw, (), {place for place, _ in problems})
    if typed != raw:
        try:
            return compile_raw(typed)
        except BadTest as bad:
            problems = bad.problems
    raise BadTest([(place, _hide(message, look_up(raw, place))) for place, message in problems])


def _typed(raw: Any, here: tuple[Any, ...], places: Iterable[tuple[Any, ...]]) -> Any:
    if isinstance(raw, dict):
        return {key: _typed(item, (*here, key), places) for key, item in raw.items()}
    if isinstance(raw, list):
        return [_typed(item, (*here, index), places) for index, item in enumerate(raw)]
    if not isinstance(raw, Expanded) or here not in places:
        return raw
    try:
        return read_scalar(raw, is_plain=True) if raw else raw
    except BadScalar:
        return raw


def look_up(raw: Any, place: tuple[Any, ...]) -> Any:
    """Return the value at a place, or None where there is none."""
    for step in place:
        if step is KEY or not isinstance(raw, dict | list):
            return None
        try:
            raw = raw[step]
        except (LookupError, TypeError):
            return None
    return raw


def _hide(message: str, value: Any) -> str:
    if not isinstance(value, Expanded) or not value:
        return message
    for quoted in (repr(str(value)), f'"{value}"', f"'{value}'"):
        message = message.replace(quoted, value.source)
    return message
