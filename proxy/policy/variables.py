"""`${VAR}` and `${VAR:-default}` in string scalars, expanded after parsing so that a value can't change the structure.

`$${` stands for a literal `${`; any other `$` stays. As in a shell `:-` also replaces an empty value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from proxy.matching import BadTest, Expanded, Problem

_REFERENCE = re.compile(r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\})?")


def expand(value: Any, environ: Mapping[str, str]) -> tuple[Any, list[Problem]]:
    """Return the value with its variables expanded, and what could not be, in words without values."""
    problems: list[Problem] = []
    return _expand(value, environ, (), problems), problems


def _expand(value: Any, environ: Mapping[str, str], place: tuple[Any, ...], problems: list[Problem]) -> Any:
    if isinstance(value, dict):
        return {key: _expand(item, environ, (*place, key), problems) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, environ, (*place, index), problems) for index, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    try:
        return Expanded(_REFERENCE.sub(lambda match: _value(match, environ), value), value)
    except BadTest as bad:
        problems += bad.under(*place)
        return value


def _value(match: re.Match[str], environ: Mapping[str, str]) -> str:
    if match[0] == "$${":
        return "${"
    name, default = match["name"], match["default"]
    if name is None:
        raise BadTest.at("a variable is written ${NAME} or ${NAME:-default}; write $${ for a literal ${")
    if default is not None:
        return environ.get(name) or default.removeprefix(":-")
    if name not in environ:
        raise BadTest.at(f"the variable {name} is not set: set it, or give a default with ${{{name}:-…}}")
    return environ[name]
