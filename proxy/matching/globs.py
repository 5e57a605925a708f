"""Globs on names: `*` is any text, slashes too, `?` one character, `[ab]` one of them.

Source: fnmatch, with case; `model: "meta/*"` and `path: /v1/*` must cross slashes.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Final

from proxy.matching.problems import BadTest, gather, shown
from proxy.matching.regexes import compile_regex

_EVERYTHING: Final = "*"
_WILD: Final = re.compile(r"[*?\[]")


def compile_globs(raw: object, *, ignore_case: bool = False) -> tuple[tuple[str, ...], Callable[[str], bool]]:
    """Return the globs, and whether a name matches one of them.

    Raises: BadTest where `raw` is neither a glob nor a list of some.
    """
    if raw == []:
        raise BadTest.at("an empty list matches nothing: name at least one, or leave the key out")
    globs = gather(enumerate(raw), _glob) if isinstance(raw, list) else [_glob(0, raw)]
    flags = re.IGNORECASE if ignore_case else 0
    match = compile_regex("|".join(map(fnmatch.translate, globs)), flags).match
    if _EVERYTHING in globs:
        return tuple(globs), lambda _name: True
    literal = frozenset(glob for glob in globs if not _WILD.search(glob))
    if len(literal) == len(globs) and not ignore_case:
        return tuple(globs), literal.__contains__
    return tuple(globs), lambda name: match(name) is not None


def _glob(_index: int, raw: object) -> str:
    if not isinstance(raw, str):
        raise BadTest.at(f"expected a glob (a string), got {shown(raw)}")
    return raw
