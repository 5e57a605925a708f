"""Pydantic's errors in a policy's words, each at its place in the raw value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import ErrorDetails

from proxy.matching import KEY, BadTest, Expanded, Problem, did_you_mean, flow, shown

_EXPECTED: Final[Mapping[str, str]] = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dataclass_type": "a mapping",
    "none_required": "null",
}
_BOUNDS: Final[Mapping[str, str]] = {
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "needs at least {min_length}, has {actual_length}",
    "too_long": "can't hold more than {max_length}, has {actual_length}",
    "string_too_short": "can't be empty",
    "string_too_long": "can't be longer than {max_length} characters",
}


def problems_of(error: ValidationError, model: type[BaseModel], raw: Any) -> list[Problem]:
    """Return each problem once; where a value may be of several types, only those that it comes near to."""
    found: dict[tuple[Any, ...], list[str]] = {}
    expected: dict[tuple[Any, ...], list[str]] = {}
    for details in error.errors(include_url=False):
        place = _place(details["loc"], raw)
        if kind := _expected(details):
            expected.setdefault(place, []).append(kind)
        else:
            for inner, message in _told(details, model, raw, place):
                found.setdefault((*place, *inner), []).append(message)
    deeper = {place[:depth] for place in (*found, *expected) for depth in range(len(place))}
    for place, kinds in expected.items():
        if place not in deeper and place not in found:
            found[place] = [_mismatch(kinds, _at(raw, place))]
    return [(place, message) for place, messages in found.items() for message in dict.fromkeys(messages)]


def _expected(details: ErrorDetails) -> str | None:
    if details["type"] in ("literal_error", "enum"):
        return str(details["ctx"]["expected"]).replace("'", "")
    return _EXPECTED.get(details["type"])


def _mismatch(kinds: list[str], raw: Any) -> str:
    hint = ""
    if "true or false" in kinds and isinstance(raw, str) and not isinstance(raw, Expanded):
        hint = " (YAML 1.2: write true or false)"
    elif "a string" in kinds and not isinstance(raw, dict | list):
        hint = " (put it in quotes)"
    return f"expected {' or '.join(dict.fromkeys(kinds))}, got {shown(raw)}{hint}"


def _told(details: ErrorDetails, model: type[BaseModel], raw: Any, place: tuple[Any, ...]) -> Iterator[Problem]:
    """Yield the problems of one error, their places seen from that of the error."""
    kind, context = details["type"], details.get("ctx", {})
    name = details["loc"][-1] if details["loc"] else ""
    if kind == "missing":
        yield (KEY,), f'"{name}" is missing'
    elif kind == "extra_forbidden":
        yield (KEY,), f'unknown key "{name}"{did_you_mean(name, _known_keys(model, details["loc"][:-1]))}'
    elif kind == "string_pattern_mismatch":
        text = place[-2] if place[-1:] == (KEY,) else shown(_at(raw, place))
        yield (), f"{text} can't be a name: use lower-case letters, digits, '.', '_' and '-'"
    elif kind in _BOUNDS:
        yield (), _BOUNDS[kind].format_map(context)
    elif isinstance(context.get("error"), BadTest):
        yield from context["error"].problems
    elif isinstance(context.get("error"), Exception):
        yield (), str(context["error"])
    elif kind != "invalid_key":  # the file's reader tells of keys that are no strings
        yield (), details["msg"][:1].lower() + details["msg"][1:]


def _place(loc: Sequence[int | str], raw: Any) -> tuple[Any, ...]:
    """Return the steps of `loc` that lead through the raw value; pydantic adds names of union members to them."""
    place: list[Any] = []
    for index, step in enumerate(loc):
        found = _step(step, raw)
        if found is not None:
            raw = raw[found[0]]
            place.append(found[0])
        elif step in ("[key]", str.__str__(KEY)) and index == len(loc) - 1:
            place.append(KEY)
    return tuple(place)


def _step(step: int | str, raw: Any) -> tuple[Any] | None:
    """Return the raw value's own key for the step: a table's `1` is told as "1"."""
    if isinstance(raw, list):
        return (step,) if isinstance(step, int) and 0 <= step < len(raw) else None
    if isinstance(raw, dict):
        if step in raw:
            return (step,)
        return next(((key,) for key in raw if not isinstance(key, str) and flow(key) == str(step).lower()), None)
    return None


def _at(raw: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        if step is KEY:
            break
        raw = raw[step]
    return raw


def _known_keys(model: type[BaseModel], loc: Sequence[int | str]) -> set[str]:
    """Return the keys of the models that stand at `loc` below `model`."""
    models = set(_models(model))
    for step in loc:
        inner = {
            found
            for candidate in models
            for name, field in candidate.model_fields.items()
            if step in (name, field.alias)
            for found in _models(field.annotation)
        }
        models = inner or models
    return {field.alias or name for found in models for name, field in found.model_fields.items()}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a value of the type may be made of; a root model is what it holds."""
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        yield from _models(annotation.model_fields["root"].annotation)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    else:
        for argument in get_args(annotation):
            yield from _models(argument)
