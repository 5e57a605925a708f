"""Regular expressions of a policy: compiled, or refused in words."""

from __future__ import annotations

import re
import warnings

from proxy.matching.problems import BadTest, shown


def compile_regex(raw: object, flags: int = 0) -> re.Pattern[str]:
    """Return the regular expression.

    Raises: BadTest saying where it stops being one.
    """
    if not isinstance(raw, str):
        raise BadTest.at(f"expected a regular expression (a string), got {shown(raw)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "possible nested set": a pattern means what it means today
            return re.compile(raw, flags)
    except re.error as error:
        at = "" if error.pos is None else f" at character {error.pos + 1}"
        raise BadTest.at(f"bad regular expression: {error.msg}{at}") from error
    except (OverflowError, RecursionError) as error:
        raise BadTest.at(f"bad regular expression: too large ({error})") from error
