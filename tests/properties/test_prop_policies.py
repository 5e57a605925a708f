"""Any policy over any body: a plan or a named refusal, the same each time; what no rule names goes on byte for byte."""

import copy
import json
from contextlib import suppress
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.engine import Request, observed, plan, replan, top_up
from proxy.errors import ProxyError
from proxy.policy import effective_text, load_policy
from proxy.refusals import Failure, read_refusal
from proxy.repairs import REPAIRS

RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
# What repairs know by themselves, whether their options name it or not.
KNOWN = {"messages", "tools", "response_format", "stream", "stream_options", "n", "best_of", "seed", "rid", "stop"}
KNOWN |= {"model", "prompt", "input", "encoding_format"}
TEXTS = st.text("'\"{}[]():.,= nstop_aé\n<>", max_size=40) | st.sampled_from(
    [
        "'n' is not supported",
        "[{'type': 'missing', 'loc': ('body', 'a'), 'msg': 'Field required'}]",
        "n: 'stop' 'tools' 'a'",
    ]
)
REFUSALS = st.builds(
    read_refusal,
    st.sampled_from([400, 422, 500, None]),
    TEXTS.map(str.encode)
    | TEXTS.map(lambda text: json.dumps({"error": {"message": text, "code": "x", "param": "n"}}).encode())
    | TEXTS.map(lambda text: json.dumps({"detail": [{"type": "x", "loc": ["body", "a", 0], "msg": text}]}).encode())
    | st.binary(max_size=20),
    stream=st.sampled_from([None, "empty", "error", "silent"]),
)
FAILURES = REFUSALS | st.just(Failure(None, fewer_choices=True)) | st.just(Failure(400, "'a' 'n'", code="7"))
ANSWERS = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text("ab<é", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "index",
                    "message",
                    "delta",
                    "content",
                    "text",
                    "tool_calls",
                    "function",
                    "name",
                    "id",
                    "model",
                    "arguments",
                    "finish_reason",
                    "logprobs",
                    "tokens",
                    "data",
                    "embedding",
                    "usage",
                    "error",
                    "object",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
CHOICES = st.builds(lambda some: {"choices": some}, st.lists(st.dictionaries(st.sampled_from(
    ["index", "message", "delta", "text", "finish_reason"]), ANSWERS, max_size=3), max_size=2))  # fmt: skip


def request_of(given):
    path, query, headers, body = given
    return Request("POST", path, query, headers, body)


def planned(request, policy):
    try:
        return plan(request, policy)
    except ProxyError as error:
        return error


def summary(made):
    """Return all of a plan that shows, but for the rules' own objects."""
    if made is None or isinstance(made, ProxyError):
        return made and made.body()
    restoring = made.restore
    shape = restoring and (
        restoring.kind,
        restoring.stream,
        restoring.include_usage,
        restoring.spreads,
        restoring.total,
    )
    return (
        made.bodies,
        shape,
        restoring and (restoring.concurrency, restoring.usage, restoring.model, len(restoring.undos), restoring.asked),
        made.applied,
        made.observed,
        made.refusal and made.refusal.body(),
        made.may_react,
        sorted(made.tried),
    )


def rounds(request, policy, failures):
    """Yield the plan of a request, and what becomes of it after each failure."""
    made = planned(request, policy)
    yield made
    for failure in failures:
        if made is None or isinstance(made, ProxyError) or made.refusal is not None:
            return
        observed(made, failure)
        made = replan(made, failure, policy)
        yield made


def assert_rest_is_untouched(source, body, named):
    """Every top-level field that no rule names is spelt as it was, if it is there; odd spellings keep their order."""
    before, after = RAW.decode(source), RAW.decode(body)
    odd = [name for name in after if name.startswith("zz-") and name in before]
    assert odd == [name for name in before if name in odd]
    for name in before.keys() & after.keys():
        if name not in named and name not in KNOWN:
            assert bytes(before[name]) == bytes(after[name]), name


@pytest.mark.parametrize("name", sorted(REPAIRS))
@settings(max_examples=12)
@given(data=st.data())
def test_any_policy_over_any_body(name, policies, raw_requests, data):
    text, rules = data.draw(policies(name))
    policy = load_policy("p.yaml", environ={}, text=text)
    again = load_policy("p.yaml", environ={}, text=effective_text(policy))
    for _ in range(3):
        request, failures = request_of(data.draw(raw_requests)), data.draw(st.lists(FAILURES, max_size=3))
        made = list(rounds(request, policy, failures))
        assert [*map(summary, made)] == [*map(summary, rounds(request, policy, failures))]
        assert [*map(summary, made)] == [*map(summary, rounds(request, again, failures))]
        for each in made:
            if each is None or isinstance(each, ProxyError):
                continue
            named = json.dumps([rule["repair"] for rule in rules]) + "".join(failure.text for failure in failures)
            for body in each.bodies if '"."' not in named else ():
                assert_rest_is_untouched(request.body, body, named)
            if each.restore is not None:
                assert_undone(each, data)
        for before, after in pairwise(made):
            assert after is None or summary(before) != summary(after), "a retry that asks the same again"


def assert_undone(made, data):
    """Any answer is undone or a named failure, and stays as it is itself."""
    top_up(made, data.draw(st.integers(0, 3)))
    undos = [make() for make in made.restore.undos]
    for answer in data.draw(st.lists(CHOICES | ANSWERS.filter(lambda value: isinstance(value, dict)), max_size=3)):
        before = copy.deepcopy(answer)
        for undo in undos:
            for act in (undo.chunk, undo.answer):
                with suppress(ProxyError):
                    assert json.dumps(act(answer))
        assert answer == before
