"""What a case states about the requests that went upstream.

Every answer of the script has to be used as often as it says, and no request may find none.
"""

from proxy.fields import find, parse_path
from tests.cases.runner.heads import header_complaints
from tests.cases.runner.values import check_keys, differences, to_bytes

_WORDS = {
    "json", "exact_json", "absent", "untouched", "body", "contains", "lacks", "keys", "headers", "target", "method",
}  # fmt: skip


class Upstream:
    """The requests of one exchange, in the order in which they came."""

    WORDS = frozenset({"requests", "sent", "sent_each", "sent_any"})

    def __init__(self, backend, client):
        self._backend = backend
        self._client = client

    def complaints(self, expected):
        """Return what is wrong with them."""
        sent = self._backend.sent
        found = (
            [f"{self._backend.surplus} requests came for which the case has no answer"] if self._backend.surplus else []
        )
        for number, answer in enumerate(self._backend.answers, 1):
            found += self._unused(number, answer)
        found += differences(len(sent), expected.get("requests", len(sent)), "the number of requests")
        if "sent" in expected:
            found += self._in_order(expected["sent"])
        found += [wrong for one in sent for wrong in self._wrong(one, expected.get("sent_each", {}))]
        return found + self._in_any_order(expected.get("sent_any", []))

    @staticmethod
    def _unused(number, answer):
        if answer.times is None or len(answer.used) == answer.times:
            return []
        return [f"answer {number} was given {len(answer.used)} times, not {answer.times}"]

    def _in_order(self, wanted):
        sent = self._backend.sent
        if len(sent) != len(wanted):
            return [f"{len(sent)} requests came, not {len(wanted)}"]
        return [wrong for one, due in zip(sent, wanted, strict=True) for wrong in self._wrong(one, due)]

    def _in_any_order(self, wanted):
        left, found = list(self._backend.sent), []
        for due in wanted:
            fitting = next((one for one in left if not self._wrong(one, due)), None)
            if fitting is None:
                found.append(f"no request left is {due}, but {[one.body[:300] for one in left]}")
            else:
                left.remove(fitting)
        return found

    def _wrong(self, sent, wanted):
        check_keys(wanted, _WORDS)
        number = self._backend.sent.index(sent) + 1
        found = [wrong for word, due in wanted.items() for wrong in _SAY[word](sent, due, self._client)]
        return [f"request {number}: {wrong}" for wrong in found]


def _absent(sent, wanted, _client):
    met = [path for path in wanted if any(True for _ in find(sent.json, parse_path(path)))]
    return [f"it holds {path}" for path in met]


def _untouched(sent, wanted, client):
    return (
        [] if (sent.body == client.sent) is wanted else [f"its body is {sent.body[:500]!r}, of {client.sent[:500]!r}"]
    )


def _same(name, met, due):
    return [] if met == due else [f"its {name} is {met[:500]!r}, not {due[:500]!r}"]


def _keys(sent, wanted, _client):
    """The names at the top of the body, in their order."""
    return _same("keys", list(sent.json), wanted)


def _headers(sent, wanted, _client):
    return header_complaints(sent.call.head, wanted)


_SAY = {
    "json": lambda sent, due, _: differences(sent.json, due, "its body"),
    "exact_json": lambda sent, due, _: differences(sent.json, due, "its body", is_part=False),
    "absent": _absent,
    "untouched": _untouched,
    "body": lambda sent, due, _: _same("body", sent.body, to_bytes(due)),
    "contains": lambda sent, due, _: [f"it lacks {one!r}" for one in due if to_bytes(one) not in sent.body],
    "lacks": lambda sent, due, _: [f"it has {one!r}" for one in due if to_bytes(one) in sent.body],
    "keys": _keys,
    "headers": _headers,
    "target": lambda sent, due, _: _same("target", sent.call.target, due),
    "method": lambda sent, due, _: _same("method", sent.call.method, due),
}
