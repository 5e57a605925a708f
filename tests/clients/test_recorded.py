"""What clients make of recorded answers that were cut into branches and merged is what they make of them as recorded.

The backend serves the recording raw to a client that comes straight, and choice by choice to the proxy's branches.
"""

from dataclasses import dataclass

import pytest

pytestmark = pytest.mark.timeout(300)

# recording → path, choices
STREAMS = {
    "llama-cpp-function-call": ("chat", 1),
    "llama-cpp-logprobs": ("chat", 1),
    "llama-cpp-n1": ("chat", 1),
    "llamafactory-n1": ("chat", 1),
    "sglang-completion-logprobs": ("completions", 1),
    "sglang-completion-n3-usage": ("completions", 3),
    "sglang-n1-usage": ("chat", 1),
    "sglang-n3": ("chat", 3),
    "sglang-n3-logprobs": ("chat", 3),
    "sglang-n3-usage": ("chat", 3),
    "sglang-reasoning": ("chat", 1),
    "sglang-reasoning-logprobs": ("chat", 1),
    "sglang-tools": ("chat", 1),
    "sglang-tools-n2": ("chat", 2),
    "transformers-n1": ("chat", 1),
    "transformers-tools": ("chat", 1),
}
ANSWERS = {
    "llama-cpp-completion-logprobs": ("completions", 1),
    "llama-cpp-function-call": ("chat", 1),
    "llama-cpp-logprobs": ("chat", 1),
    "llamafactory-three-choices": ("chat", 3),
    "llamafactory-tool-calls-of-two": ("chat", 2),
    "sglang-completion-three-choices": ("completions", 3),
    "sglang-logprobs": ("chat", 1),
    "sglang-meta-info-of-two": ("chat", 2),
    "sglang-reasoning": ("chat", 1),
    "sglang-three-choices": ("chat", 3),
    "sglang-tool-call": ("chat", 1),
    "transformers-tool-call": ("chat", 1),
}
# The rows that get a recording of the one kind to show, by the shape that the client asks for.
OF_STREAMS = (("edited", True), ("fanned", True), ("streamed", False), ("fanned-streamed", False))
OF_ANSWERS = (("edited", False), ("fanned", False), ("whole", True), ("fanned-whole", True))
MARKS = {"openai_python.py": ()}
READERS = ("openai_python.py", "openai_node.mjs")
# What the README says of the clients themselves: OpenAI's for Python can't read each of the recordings, so that what is
# right is said by the chunks; and LangChain adds up names that are told again and again.
UNREADABLE = ("openai_python.py",)
REPEATING = ("langchain_python.py", "llama-cpp-function-call")
# driver → the calls that add up a stream by themselves, and whether they know of more than one choice
ACCUMULATORS = {
    "openai_python.py": (("stream",), True),
    "openai_node.mjs": (("stream",), True),
    "langchain_python.py": (("stream",), False),
    "ai_sdk.mjs": (("compatible.streamText", "openai.streamText"), False),
}


@dataclass(frozen=True)
class Case:
    """One recording, asked for by one client on one row."""

    driver: str
    row: str
    recording: str
    path: str
    n: int
    is_stream: bool
    is_recorded_stream: bool
    call: str = "create"

    def __str__(self):
        kinds = [("an answer", "a stream")[is_stream] for is_stream in (self.is_recorded_stream, self.is_stream)]
        return f"{self.driver} {self.call} {self.recording}, {kinds[0]}, {self.row} to {kinds[1]}"

    def job(self, at, is_stream):
        place = "" if self.is_recorded_stream else "answers/"
        # An accumulator raises where an answer has become too long to parse.
        finish = "" if self.call == "create" else "@stop"
        body = {"model": f"{self.row}/{place}{self.recording}{finish}", "seed": 5}
        body |= {"prompt": "hello"} if self.path == "completions" else {"messages": [{"role": "user", "content": "hi"}]}
        if self.n > 1:
            body["n"] = self.n
        if is_stream:
            body["stream_options"] = {"include_usage": True}
        is_reference = at != "proxy" and self.driver in UNREADABLE
        name = "create" if is_reference else self.call
        call = {"id": f"{at}: {self}", "at": at, "call": name, "path": self.path}
        return call | {"stream": is_stream, "body": body}

    def jobs(self):
        return [self.job("proxy", self.is_stream), self.job("scripted", self.is_recorded_stream)]


READ = [
    Case(driver, row, recording, path, n, is_stream, rows is OF_STREAMS)
    for driver in READERS
    for recordings, rows in ((STREAMS, OF_STREAMS), (ANSWERS, OF_ANSWERS))
    for recording, (path, n) in recordings.items()
    for row, is_stream in rows
    if n > 1 or not row.startswith("fanned")
]
ACCUMULATED = [
    Case(driver, row, recording, path, n, True, True, call)
    for driver, (calls, has_choices) in ACCUMULATORS.items()
    for call in calls
    for recording, (path, n) in STREAMS.items()
    for row in ("edited", "fanned")
    if path == "chat" and (row == "edited" if n == 1 else has_choices) and (driver, recording) != REPEATING
]


@pytest.fixture(scope="module")
def results(ask):
    known = {}

    def of(driver):
        if driver not in known:
            own = [case for case in READ + ACCUMULATED if case.driver == driver]
            known[driver] = ask(driver, [job for case in own for job in case.jobs()])
        return known[driver]

    return of


def marked(cases):
    return [pytest.param(case, id=str(case), marks=MARKS.get(case.driver, (pytest.mark.clients,))) for case in cases]


@pytest.mark.parametrize("case", marked(READ))
def test_the_message_is_the_recorded_one(case, results, message_of):
    told = results(case.driver)
    recorded, restored = told[f"scripted: {case}"], told[f"proxy: {case}"]
    assert "error" not in restored, restored["error"]
    choices, native = message_of(restored)["choices"], message_of(recorded)["choices"]
    assert [choice["index"] for choice in choices] == list(range(case.n))
    assert choices == native
    assert message_of(restored).get("usage") == message_of(recorded).get("usage")


@pytest.mark.parametrize("case", marked(ACCUMULATED))
def test_a_client_adds_up_what_it_adds_up_of_the_recording(case, results, message_of):
    told = results(case.driver)
    recorded, restored = told[f"scripted: {case}"], told[f"proxy: {case}"]
    assert "error" not in restored, restored["error"]
    if "choices" in restored["answer"]:
        assert message_of(restored)["choices"] == message_of(recorded)["choices"]
        assert message_of(restored).get("usage") == message_of(recorded).get("usage")
    else:
        assert message_of(restored) == message_of(recorded)
    assert case.driver in UNREADABLE or restored.get("events") == recorded.get("events")
