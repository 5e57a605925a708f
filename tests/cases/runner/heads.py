"""What a case states about the header fields of a request or an answer."""

import re

from tests.cases.runner.values import check_keys


def header_complaints(head, wanted):
    """Return what is wrong with a head: null is absent, a list all values, {matches: regex} searched in the first."""
    found = []
    for name, value in wanted.items():
        met = head.all(name.lower())
        if isinstance(value, dict):
            check_keys(value, {"matches"})
            if not met or not re.search(value["matches"], met[0]):
                found.append(f"the header {name} is {met}, which {value['matches']!r} does not match")
        elif met != ([] if value is None else [str(one) for one in (value if isinstance(value, list) else [value])]):
            found.append(f"the header {name} is {met}, not {value!r}")
    return found
