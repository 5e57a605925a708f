"""What clients make of failures: an error each time, and never a message.

A refusal is the backend's own to the client, by whichever way it came.
"""

from dataclasses import dataclass

import pytest

pytestmark = pytest.mark.timeout(300)

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
TEXT = {"prompt": "hello"}
REFUSALS = ("refused", "limited", "crashed")
LATE = ("errs", "dies")
# row → whether the client asks for a stream, choices, cues
ROWS = {
    "relayed": ((True, False), 1, (*REFUSALS, *LATE, "aborted")),
    "edited": ((True, False), 1, (*REFUSALS, *LATE, "aborted", "empty")),
    "whole": ((True,), 1, (*REFUSALS, *LATE, "empty")),
    "streamed": ((False,), 1, (*REFUSALS, *LATE, "aborted", "empty")),
    "fanned": ((True, False), 3, (*REFUSALS, *LATE, "aborted", "empty", "1-refused", "2-errs", "1-dies")),
    "fanned-whole": ((True,), 3, (*REFUSALS, *LATE, "empty", "1-refused", "1-dies")),
    "fanned-streamed": ((False,), 3, (*REFUSALS, *LATE, "aborted", "empty", "1-refused", "2-errs", "1-dies")),
}
# driver → stream? → its calls
CALLS = {
    "openai_python.py": {True: ("create", "create_async", "stream"), False: ("create", "parse")},
    "openai_node.mjs": {True: ("create", "stream", "handed_on"), False: ("create", "parse")},
    "langchain_python.py": {True: ("stream", "stream_async"), False: ("invoke", "generate")},
    "ai_sdk.mjs": {
        True: ("compatible.streamText", "openai.streamText"),
        False: ("compatible.generateText", "openai.generateText"),
    },
}
TEXT_TOO = ("create", "compatible.streamText", "openai.generateText")
MARKS = {"openai_python.py": ()}
ONE_CHOICE = ("langchain_python.py", "ai_sdk.mjs")
SAID = {"errs": "The engine broke.", "aborted": "The engine broke."}


@dataclass(frozen=True)
class Case:
    """One failure, met by one call of a client on one row."""

    driver: str
    call: str
    path: str
    row: str
    is_stream: bool
    n: int
    cue: str

    def __str__(self):
        shape = "stream" if self.is_stream else "whole"
        return f"{self.driver} {self.call} {self.path}, {self.row}, {shape}, {self.cue}"

    def job(self, at):
        body = {"model": f"{self.row}/{self.cue}", "seed": 5} | (CHAT if self.path == "chat" else TEXT)
        if self.n > 1:
            body["n"] = self.n
        call = {"id": f"{at}: {self}", "at": at, "call": self.call, "path": self.path}
        return call | {"stream": self.is_stream, "body": body}


def all_cases():
    for driver, calls in CALLS.items():
        for row, (shapes, n, cues) in ROWS.items():
            if n > 1 and driver in ONE_CHOICE:
                continue
            for is_stream in shapes:
                for call in calls[is_stream]:
                    for path in ("chat", "completions") if call in TEXT_TOO else ("chat",):
                        yield from (Case(driver, call, path, row, is_stream, n, cue) for cue in cues)


CASES = list(all_cases())


def cases_of(*cues):
    """Return the parameters of the cases with one of these cues, whichever branch meets it."""
    own = [case for case in CASES if case.cue.rpartition("-")[2] in cues]
    return [pytest.param(case, id=str(case), marks=MARKS.get(case.driver, (pytest.mark.clients,))) for case in own]


@pytest.fixture(scope="module")
def results(ask):
    known = {}

    def of(driver):
        if driver not in known:
            own = [case for case in CASES if case.driver == driver]
            known[driver] = ask(driver, [case.job(at) for case in own for at in _places(case)])
        return known[driver]

    return of


def _places(case):
    return ("proxy", "scripted") if case.cue in REFUSALS else ("proxy",)


def has_message(result):
    return "answer" in result or "chunks" in result


@pytest.mark.parametrize("case", cases_of(*REFUSALS))
def test_a_refusal_is_the_backends_own(case, results):
    told = results(case.driver)
    refused = told[f"proxy: {case}"]
    assert not has_message(refused)
    if case.cue in REFUSALS:
        assert refused["error"] == told[f"scripted: {case}"]["error"]
    assert (
        refused["error"]["status_code"] == {"refused": 400, "limited": 429, "crashed": 500}[case.cue.rpartition("-")[2]]
    )


@pytest.mark.parametrize("case", cases_of("aborted", "empty"))
def test_an_answer_that_never_began_is_an_error(case, results):
    failed = results(case.driver)[f"proxy: {case}"]
    assert not has_message(failed)
    assert SAID.get(case.cue, "") in failed["error"]["message"]


@pytest.mark.parametrize("case", cases_of("errs", "dies"))
def test_an_answer_that_breaks_off_is_an_error(case, results):
    failed = results(case.driver)[f"proxy: {case}"]
    assert not has_message(failed)
    assert SAID.get(case.cue.rpartition("-")[2], "") in failed["error"]["message"]
