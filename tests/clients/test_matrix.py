"""What clients make of an answer that was restored is what they make of sglang's own.

A case is a client's call × a row of the restore table × n × what was asked for. Its reference is the same call straight
at sglang's stand-in, which can do all of it by itself.
"""

import json
from dataclasses import dataclass, replace

import pytest

# The shapes that a client may ask for, and how many choices, where a row's rules have anything to do.
ROWS = {
    "relayed": (("stream", 1), ("stream", 3), ("whole", 1), ("whole", 3)),
    "edited": (("stream", 1), ("stream", 3), ("whole", 1), ("whole", 3)),
    "whole": (("stream", 1), ("stream", 3)),
    "streamed": (("whole", 1), ("whole", 3)),
    "fanned": (("stream", 3), ("whole", 3)),
    "fanned-whole": (("stream", 3),),
    "fanned-streamed": (("whole", 3),),
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "What the weather is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "found", "strict": True, "schema": SCHEMA}}
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
CHAT = {
    "text": HELLO,
    "tools": {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": [WEATHER]},
    "structured output": HELLO | {"response_format": FORMAT},
    "logprobs": HELLO | {"logprobs": True, "top_logprobs": 2},
    "reasoning": HELLO | {"chat_template_kwargs": {"enable_thinking": True}},
    "too few tokens": HELLO | {"max_tokens": 3},
}
TEXT = {
    "text": {"prompt": "hello"},
    "two prompts": {"prompt": ["hello", "ping"]},
    "logprobs": {"prompt": "hello", "logprobs": 2},
    "an echo": {"prompt": "hello", "echo": True},
}
CALM = tuple(feature for feature in CHAT if feature not in ("structured output", "too few tokens"))
# driver → call → shape, choices, path, what is asked for
CALLS = {
    "openai_python.py": {
        "create": ("stream whole", (1, 3), "chat", tuple(CHAT)),
        "create_async": ("stream whole", (1, 3), "chat", ("tools", "logprobs")),
        "stream": ("stream", (1, 3), "chat", tuple(CHAT)),
        "stream_async": ("stream", (1, 3), "chat", ("tools", "logprobs", "structured output")),
        "parse": ("whole", (1, 3), "chat", tuple(CHAT)),
        "parse_async": ("whole", (1, 3), "chat", ("tools", "structured output")),
        "create ": ("stream whole", (1, 3), "completions", tuple(TEXT)),
        "create_async ": ("stream whole", (1, 3), "completions", ("two prompts",)),
    },
    "openai_node.mjs": {
        "create": ("stream whole", (1, 3), "chat", tuple(CHAT)),
        "stream": ("stream", (1, 3), "chat", tuple(CHAT)),
        "handed_on": ("stream", (1, 3), "chat", tuple(CHAT)),
        "parse": ("whole", (1, 3), "chat", tuple(CHAT)),
        "create ": ("stream whole", (1, 3), "completions", tuple(TEXT)),
    },
    "langchain_python.py": {
        "invoke": ("whole", (1,), "chat", CALM),
        "generate": ("whole", (1, 3), "chat", CALM),
        "stream": ("stream", (1,), "chat", CALM),
        "stream_async": ("stream", (1,), "chat", CALM),
        "structured": ("whole", (1,), "chat", ("structured output",)),
        "structured_stream": ("stream", (1,), "chat", ("structured output",)),
        "text": ("stream whole", (1, 3), "completions", ("text",)),
    },
    "ai_sdk.mjs": {
        f"{provider}.{function}": (shape, (1,), "chat", features)
        for provider in ("compatible", "openai")
        for function, shape, features in (
            ("generateText", "whole", CALM),
            ("streamText", "stream", CALM),
            ("generateObject", "whole", ("structured output",)),
            ("streamObject", "stream", ("structured output",)),
        )
    }
    | {
        f"{provider}.{function} ": (shape, (1,), "completions", ("text",))
        for provider in ("compatible", "openai")
        for function, shape in (("generateText", "whole"), ("streamText", "stream"))
    },
}
pytestmark = pytest.mark.timeout(300)  # the first case of a client waits for all of them
# What the README says of the clients themselves.
#
# `fromReadableStream` takes a new id for another answer, and each of sglang's choices has its own.
READABLE = {("handed_on", 3): "stream"}
UNREADABLE = {("handed_on", 3, "relayed")}
# Of a field that it doesn't know, the Node SDK's accumulator keeps the last piece; one that reads what was handed on
# knows no types to parse for.
UNTOLD = {
    ("openai_node.mjs", "stream"): ("reasoning_content",),
    ("openai_node.mjs", "handed_on"): ("reasoning_content", "parsed", "parsed_arguments"),
}
# Streamed, LangChain's text class takes the first choice of each chunk, whichever it is.
CAN_T = {("langchain_python.py", "text", "stream", 3)}


@dataclass(frozen=True)
class Case:
    """One call of one client on one row."""

    driver: str
    call: str
    row: str
    shape: str
    n: int
    path: str
    feature: str

    def __str__(self):
        return f"{self.driver} {self.call.strip()} {self.path}, {self.row}, {self.shape}, n={self.n}, {self.feature}"

    @property
    def model(self):
        return f"{self.row}/sglang"

    def native(self):
        """Return the case that says what is right: straight at the backend, by a call that can read what it says."""
        return replace(self, row="relayed", call=READABLE.get((self.call, self.n), self.call))

    def job(self, at):
        body = {"model": self.model, "seed": 5, "temperature": 0.7, "n": self.n}
        body |= (CHAT if self.path == "chat" else TEXT)[self.feature]
        is_stream = self.shape == "stream"
        if is_stream:
            body["stream_options"] = {"include_usage": True}
        if self.n == 1:
            del body["n"]
        call = {"id": f"{at}: {self}", "at": at, "call": self.call.strip(), "path": self.path}
        return call | {"stream": is_stream, "body": body}


def all_cases():
    for driver, calls in CALLS.items():
        for call, (shapes, choices, path, features) in calls.items():
            for row, (shape, n) in ((row, pair) for row, pairs in ROWS.items() for pair in pairs):
                if (
                    (call, n, row) in UNREADABLE
                    or shape not in shapes.split()
                    or n not in choices
                    or (driver, call, shape, n) in CAN_T
                ):
                    continue
                yield from (Case(driver, call, row, shape, n, path, feature) for feature in features)


CASES = list(all_cases())


@pytest.fixture(scope="module")
def results(ask):
    """Return what a driver was told in all of its cases."""
    known = {}

    def of(driver):
        if driver not in known:
            own = [case for case in CASES if case.driver == driver]
            native = dict.fromkeys(case.native() for case in own)
            known[driver] = ask(driver, [case.job("proxy") for case in own] + [case.job("sglang") for case in native])
        return known[driver]

    return of


def marked(case):
    marks = [] if case.driver == "openai_python.py" else [pytest.mark.clients]
    return pytest.param(case, id=str(case), marks=marks)


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_the_message_is_the_one_that_the_backend_itself_gives(case, results, message_of):
    told, own = results(case.driver), case.native()
    native, proxied = told[f"sglang: {own}"], told[f"proxy: {case}"]
    proxied = json.loads(json.dumps(proxied).replace(case.model, own.model))
    without = UNTOLD.get((case.driver, case.call), ())
    assert proxied.get("error") == native.get("error")
    assert message_of(proxied, without) == message_of(native, without)
    assert proxied.get("events") == native.get("events")


@pytest.mark.parametrize("row", ROWS)
def test_the_row_is_what_its_name_says(row, proxy):
    for shape, n in ROWS[row]:
        job = Case("", "create", row, shape, n, "chat", "text").job("proxy")
        status, headers, _ = proxy.post(job["body"] | {"stream": job["stream"]})
        rules = {part.partition(";")[0] for part in headers.get("mendproxy-repairs", "").split(", ")}
        kind = headers["content-type"].partition(";")[0]
        assert (status, kind) == (200, "text/event-stream" if job["stream"] else "application/json")
        assert rules == set(row.removeprefix("relayed").split("-"))
