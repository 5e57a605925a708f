"""What a case states about an exchange: each statement is a function of the outcome that returns what is wrong."""

import json
import re

from tests.cases.runner.answered import DONE, read_answer, unsound
from tests.cases.runner.answers import usage_of
from tests.cases.runner.heads import header_complaints
from tests.cases.runner.upstream import Upstream
from tests.cases.runner.values import check_keys, differences, to_bytes

_REPAIR = re.compile(r'\s*("?[^;",]+"?)((?:;\w+="(?:[^"\\]|\\.)*")*)\s*(?:,|$)')


def check(outcome, expected):
    """Raise AssertionError with everything that is not as it should be."""
    known = _OF_ANSWER.keys() | _OF_ALL.keys() | Upstream.WORDS
    check_keys(expected, known)
    found = Upstream(outcome.backend, outcome.client).complaints(expected)
    found += [wrong for name, state in _OF_ALL.items() if name in expected for wrong in state(outcome, expected[name])]
    if outcome.client.answer is not None:
        stated = {"ends": "clean"} | expected
        view = _View(outcome)
        found += [wrong for name, state in _OF_ANSWER.items() if name in stated for wrong in state(view, stated[name])]
    elif not _OF_ANSWER.keys().isdisjoint(expected):
        found.append("the client left, so nothing can be stated of its answer")
    if found:
        heard = outcome.client.heard[-3000:].decode("utf-8", "backslashreplace")
        raise AssertionError("\n".join([*found, "", "the client received:", heard]))


class _View:
    """The answer and what is read of it."""

    def __init__(self, outcome):
        self.answer = outcome.client.answer
        self.backend = outcome.backend
        self.told = read_answer(self.answer)


def _status(view, wanted):
    return differences(view.answer.status, wanted, "the status")


def _headers(view, wanted):
    return header_complaints(view.answer, wanted)


def _body(view, wanted):
    met, due = view.answer.body, to_bytes(wanted)
    return [] if met == due else [f"the body is {met[:500]!r}, not {due[:500]!r}"]


def _contains(view, wanted):
    return [f"the body lacks {one!r}" for one in wanted if to_bytes(one) not in view.answer.body]


def _lacks(view, wanted):
    return [f"the body has {one!r}" for one in wanted if to_bytes(one) in view.answer.body]


def _relayed(view, wanted):
    is_same = view.answer.body == bytes(view.backend.sent[-1].answered)
    return [] if is_same is wanted else [f"the body {'is' if is_same else 'is not'} what the backend sent last"]


def _json(view, wanted):
    return differences(view.told.whole, wanted, "the answer")


def _exact_json(view, wanted):
    return differences(view.told.whole, wanted, "the answer", is_part=False)


def _error(view, wanted):
    wanted = dict(wanted)
    token, message = wanted.pop("token", None), wanted.pop("message", None)
    found = []
    if len(view.told.errors) != 1:
        return [f"there are {len(view.told.errors)} errors"]
    error = view.told.errors[0]
    if not isinstance(error, dict):
        return [f"the error is {error!r}"]
    if view.told.events and (DONE in view.told.events or view.told.events[-1].get("error") != error):
        found.append("the error is not the last event, or a [DONE] is there")
    if token is not None:
        found += header_complaints(view.answer, {"Proxy-Status": f"mendproxy;error={token}"})
    if message is not None and not re.search(message, error["message"]):
        found.append(f"the error's message is {error['message']!r}, which {message!r} does not match")
    return found + differences(error, wanted, "the error")


def _events(view, wanted):
    return differences(view.told.events, wanted, "the events")


def _texts(view, wanted):
    return differences({index: one.message.get("content") or "" for index, one in view.told.choices.items()}, wanted,
                       "the texts", is_part=False)  # fmt: skip


def _messages(view, wanted):
    return differences({index: one.message for index, one in view.told.choices.items()}, wanted, "the messages")


def _finishes(view, wanted):
    met = {index: one.finish for index, one in view.told.choices.items()}
    return differences(met, wanted, "the finish_reasons", is_part=False)


def _logprobs(view, wanted):
    met = {index: one.logprobs for index, one in view.told.choices.items()}
    return differences(met, wanted, "the numbers of logprobs", is_part=False)


def _usage(view, wanted):
    """One usage, in a stream on its own in the last chunk; null where there is none at all."""
    said = view.told.usages
    if wanted is None:
        return [f"there is a usage: {said}"] if said else []
    if len(said) != 1:
        return [f"there are {len(said)} usages"]
    usage, chunk = said[0]
    is_last = not view.told.events or (chunk["choices"] == [] and view.told.events[-2:] == [chunk, DONE])
    return ([] if is_last else ["the usage is not a chunk of its own before [DONE]"]) + differences(
        usage, usage_of(wanted), "the usage"
    )


def _sound(view, wanted):
    found = unsound(view.told)
    return found if wanted else [] if found else ["the stream is sound"]


def _repairs(view, wanted):
    """The rules that are told, in order, each with its loss; none where the header is absent."""
    said = view.answer.get("mendproxy-repairs") or ""
    met = {name.strip('"'): re.search(r';loss="((?:[^"\\]|\\.)*)"', rest)[1] for name, rest in _REPAIR.findall(said)}
    found = differences(met, wanted, "the repairs told", is_part=False)
    return found or ([] if list(met) == list(wanted) else [f"the repairs are told in the order {list(met)}"])


def _ends(view, wanted):
    answer = view.answer
    met = "clean" if answer.is_whole else "cut"
    return [] if met == wanted else [f"the answer's end is {met}, not {wanted}"]


_OF_ANSWER = {
    "status": _status,
    "headers": _headers,
    "body": _body,
    "contains": _contains,
    "lacks": _lacks,
    "relayed": _relayed,
    "json": _json,
    "exact_json": _exact_json,
    "error": _error,
    "events": _events,
    "texts": _texts,
    "messages": _messages,
    "finishes": _finishes,
    "logprobs": _logprobs,
    "usage": _usage,
    "sound": _sound,
    "repairs": _repairs,
    "ends": _ends,
}


def _metrics(outcome, wanted):
    """The samples by name and labels as Prometheus writes them; null is a sample that is not there."""
    met = dict(line.rsplit(" ", 1) for line in outcome.metrics.splitlines() if not line.startswith("#"))
    return [
        f"the sample {sample} is {met.get(sample)}, not {value}"
        for sample, value in wanted.items()
        if (float(met[sample]) if sample in met else None) != value
    ]


def _log(outcome, wanted):
    """The request's log line."""
    lines = [line for line in outcome.logs if line["event"] == "request"]
    return differences(json.loads(json.dumps(lines, default=str)), [wanted], "the log")


_OF_ALL = {"metrics": _metrics, "log": _log}
