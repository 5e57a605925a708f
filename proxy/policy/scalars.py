"""YAML 1.2's core schema: what a plain scalar is.

Source: YAML 1.2.2 §10.3.2, without .inf and .nan, which JSON can't say.
"""

from __future__ import annotations

import math
import re
from typing import Final

Scalar = str | int | float | bool | None

_WORDS: Final[dict[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_JSON = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DIGITS: Final = 1000


class BadScalar(ValueError):
    """A scalar that no JSON text could hold."""


def read_scalar(text: str, *, is_plain: bool) -> Scalar:
    """Return what the scalar means; quoted and block scalars are strings.

    Raises: BadScalar.
    """
    if _SURROGATE.search(text):
        raise BadScalar("a lone surrogate is no character: write it as \\U0001F600 or plainly")
    if not is_plain:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _NO_JSON.fullmatch(text):
        raise BadScalar(f"{text} is no JSON number")
    number = _number(text)
    return text if number is None else number


def _number(text: str) -> int | float | None:
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEXADECIMAL.fullmatch(text):
        return int(text[2:], 16)
    if not _FLOAT.fullmatch(text):
        return None
    if len(text) > _MAX_DIGITS:
        raise BadScalar(f"a number of more than {_MAX_DIGITS} digits")
    if _INTEGER.fullmatch(text):
        return int(text)
    if math.isinf(float(text)):
        raise BadScalar(f"{text} is too large for a JSON number")
    return float(text)
