"""Names and ids that went upstream in the backend's words come back in the client's: in chunks, answers, events."""

import json
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.allowance import Allowance
from proxy.body import Body
from proxy.engine import Request, plan, replan
from proxy.policy import load_policy
from proxy.reader import Reader
from proxy.refusals import Failure
from proxy.repairs import REPAIRS
from proxy.repairs.card import Draft
from proxy.repairs.identifiers import Form

IDS = {"ids": {"allowed": "a-zA-Z0-9", "length": 9}, "names": {"allowed": "a-zA-Z0-9_-", "max": 64}}
ASKED = {
    "model": "gpt-4o",
    "tools": [
        {"type": "function", "function": {"name": "files.read"}},
        {"type": "function", "function": {"name": "ok"}},
    ],
    "messages": [{"role": "tool", "tool_call_id": "call_1", "content": "x"}],
}


def undo_of(repair, options, body=None):
    """Return the answer half that a request leaves behind."""
    card = REPAIRS[repair]
    change = card.build(card.options.model_validate(options))(Draft(Body.of(body or ASKED)))
    (make,) = change.draft.undos
    return make()


def called(holder, name, identity="new456789"):
    call = {
        "index": 0,
        "id": identity,
        "type": "function",
        "function": {"name": name, "arguments": '{"name": "files_read"}'},
    }
    return {"choices": [{"index": 0, holder: {"content": "files_read", "tool_calls": [call]}, "finish_reason": None}]}


RESTORED = [
    pytest.param("rewrite_ids", IDS, called("message", "files_read"), called("message", "files.read"), id="a call"),
    pytest.param("rewrite_ids", IDS, called("delta", "files_read"), called("delta", "files.read"), id="a chunk's call"),
    pytest.param("rewrite_ids", IDS, called("delta", "ok"), called("delta", "ok"), id="a name that was good"),
    pytest.param(
        "rewrite_ids", IDS, called("delta", "files.read"), called("delta", "files.read"), id="a name not ours"
    ),
    pytest.param("rewrite_ids", IDS, called("delta", ""), called("delta", ""), id="an empty name of a later chunk"),
    pytest.param(
        "rewrite_ids",
        IDS,
        called("message", "ok", "PG9w8sAbF"),
        called("message", "ok", "call_1"),
        id="an id that is ours",
    ),
    pytest.param(
        "rewrite_ids",
        IDS,
        {"choices": [{"message": {"function_call": {"name": "files_read", "arguments": "{}"}}}]},
        {"choices": [{"message": {"function_call": {"name": "files.read", "arguments": "{}"}}}]},
        id="an older call",
    ),
    pytest.param(
        "rewrite_ids",
        IDS,
        {
            "choices": [
                {"delta": {"tool_calls": [{"custom": {"name": "files_read"}}]}},
                called("delta", "files_read")["choices"][0],
            ]
        },
        {
            "choices": [
                {"delta": {"tool_calls": [{"custom": {"name": "files.read"}}]}},
                called("delta", "files.read")["choices"][0],
            ]
        },
        id="calls of several choices",
    ),
    pytest.param(
        "rewrite_ids",
        IDS,
        {
            "output": [{"type": "function_call", "name": "files_read", "call_id": "PG9w8sAbF"}],
            "tools": [{"name": "files_read"}],
        },
        {
            "output": [{"type": "function_call", "name": "files.read", "call_id": "call_1"}],
            "tools": [{"name": "files.read"}],
        },
        id="a response",
    ),
    pytest.param(
        "rewrite_ids",
        IDS,
        {"type": "response.output_item.added", "item": {"type": "function_call", "name": "files_read"}},
        {"type": "response.output_item.added", "item": {"type": "function_call", "name": "files.read"}},
        id="an event of a response",
    ),
    pytest.param(
        "rewrite_ids",
        IDS,
        {"response": {"output": [{"name": "files_read"}], "tool_choice": {"type": "function", "name": "files_read"}}},
        {"response": {"output": [{"name": "files.read"}], "tool_choice": {"type": "function", "name": "files.read"}}},
        id="the last event of a response",
    ),
    pytest.param("rewrite_ids", IDS, {"choices": []}, {"choices": []}, id="a chunk of usage"),
    pytest.param("rewrite_ids", IDS, {"choices": None, "output": 5}, {"choices": None, "output": 5}, id="no answer"),
    pytest.param(
        "rename_model", {"to": "m"}, {"id": "x", "model": "m"}, {"id": "x", "model": "gpt-4o"}, id="the model"
    ),
    pytest.param("rename_model", {"to": "m"}, {"model": "/models/m"}, {"model": "gpt-4o"}, id="a folder for a model"),
    pytest.param("rename_model", {"to": "m"}, {"model": None}, {"model": "gpt-4o"}, id="a model that is null"),
    pytest.param("rename_model", {"to": "m"}, {"choices": []}, {"choices": []}, id="no model is added"),
    pytest.param("rename_model", {"drop": True}, {"model": "m"}, {"model": "gpt-4o"}, id="a model that was not named"),
    pytest.param(
        "rename_model",
        {"strip_after": "-"},
        {"object": "list", "data": [{"embedding": [0.5]}], "model": "gpt"},
        {"object": "list", "data": [{"embedding": [0.5]}], "model": "gpt-4o"},
        id="the model of embeddings",
    ),
    pytest.param(
        "rename_model",
        {"map": {"*": "m"}},
        {"type": "response.created", "response": {"id": "r", "model": "m"}},
        {"type": "response.created", "response": {"id": "r", "model": "gpt-4o"}},
        id="the model in an event of a response",
    ),
    pytest.param(
        "rename_model",
        {"to": "m"},
        {"type": "message_start", "message": {"model": "m", "content": []}},
        {"type": "message_start", "message": {"model": "gpt-4o", "content": []}},
        id="the model in the first event of a message",
    ),
]


@pytest.mark.parametrize(("repair", "options", "theirs", "ours"), RESTORED)
def test_it_is_restored_in_answers_and_in_chunks_and_what_came_stays_as_it_was(repair, options, theirs, ours):
    before = json.dumps(theirs)
    undo = undo_of(repair, options)
    assert undo.answer(theirs) == ours
    assert undo.chunk(theirs) == ours
    assert json.dumps(theirs) == before
    assert not undo.is_done


JSON = st.recursive(
    st.sampled_from([None, True, 0, "files_read", "PG9w8sAbF", "m"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "message",
                    "delta",
                    "tool_calls",
                    "function",
                    "name",
                    "id",
                    "model",
                    "output",
                    "item",
                    "response",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(answer=st.dictionaries(st.sampled_from(["choices", "output", "item", "response", "model", "message"]), JSON))
def test_whatever_the_backend_answers_nothing_raises_and_nothing_is_changed_in_place(answer):
    before = json.dumps(answer)
    for undo in (undo_of("rewrite_ids", IDS), undo_of("rename_model", {"to": "m"})):
        assert undo.chunk(answer) == undo.answer(answer)
    assert json.dumps(answer) == before


FORMS = st.sampled_from(
    [("a-zA-Z0-9", 9, None), ("a-zA-Z0-9_-", None, 8), ("a-zA-Z0-9_-", None, 64), ("a-j", 8, None), ("a-z", None, None)]
)


@given(texts=st.lists(st.text("ab.é-_", max_size=12), max_size=12), spelling=FORMS)
def test_new_identifiers_fit_are_never_alike_and_come_from_the_old_ones_alone(texts, spelling):
    form = Form.of(*spelling)
    new = form.renamed(texts)
    after = {text: new.get(text, text) for text in texts}
    assert all(map(form.fits, after.values()))
    assert len(set(after.values())) == len(after)
    assert {text for text in texts if not form.fits(text)} == set(new)
    assert form.renamed(texts) == new
    assert form.renamed(after.values()) == {}


@given(ids=st.lists(st.text("ab.é-_1", max_size=12), max_size=6))
def test_results_still_belong_to_their_calls_and_the_client_gets_its_ids_back(ids):
    ids = ["call_1", *ids]
    messages = [
        message
        for one in ids
        for message in (
            {"role": "assistant", "tool_calls": [{"id": one, "function": {"name": one, "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": one, "name": one, "content": one},
        )
    ]
    card = REPAIRS["rewrite_ids"]
    change = card.build(card.options.model_validate(IDS))(Draft(Body.of({"messages": messages})))
    sent = change.draft.body["messages"]
    pairs = [(sent[at]["tool_calls"][0], sent[at + 1]) for at in range(0, len(sent), 2)]
    assert all(call["id"] == result["tool_call_id"] for call, result in pairs)
    assert all(call["function"]["name"] == result["name"] for call, result in pairs)
    assert [result["content"] for _, result in pairs] == ids
    assert (
        len({call["id"] for call, _ in pairs}) == len({call["function"]["name"] for call, _ in pairs}) == len(set(ids))
    )
    (make,) = change.draft.undos
    answer = {"choices": [{"message": {"tool_calls": [call for call, _ in pairs]}}]}
    calls = make().answer(answer)["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["name"]) for call in calls] == [(one, one) for one in ids]


POLICY = """
version: 1
backends: {main: {url: "http://127.0.0.1:9"}}
rules:
  - id: model
    when: {path: /v1/*}
    repair: [rename_model: {map: {"gpt-*": "gpt:big"}}, rename_model: {strip_after: ":"}]
  - {id: names, repair: [{rewrite_ids: {names: {}}}]}
  - id: pinned
    on_error: {status: 400, message: "Server is pinned to '(?P<model>[^']+)'"}
    repair: [rename_model: {to: "{model}"}]
"""


def planned(path, body):
    policy = load_policy("p.yaml", text=POLICY, environ={})
    return plan(Request("POST", path, "", (), json.dumps(body).encode()), policy)


def restored(made, answer):
    return reduce(lambda value, make: make().answer(value), made.restore.undos, answer)


def test_a_plan_asks_in_the_backends_words_and_restores_the_clients_in_reverse_order():
    made = planned("/v1/chat/completions", ASKED | {"stream": True})
    (sent,) = map(json.loads, made.bodies)
    assert sent["model"] == "gpt"
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["files_read", "ok"]
    assert [(applied.rule, applied.loses) for applied in made.applied] == [("model", None), ("names", None)]
    assert made.restore.stream
    answered = restored(made, called("delta", "files_read") | {"model": "/models/gpt"})
    assert answered == called("delta", "files.read") | {"model": "gpt-4o"}


class Branch:
    """A branch whose answer is a list of pieces of bytes."""

    headers = (("Content-Type", "text/event-stream"),)
    sent_at_s = 0.0

    def __init__(self, *pieces):
        self._pieces = [*pieces, b""]

    async def read(self, wait_s):
        assert wait_s >= 0
        return self._pieces.pop(0)


async def test_a_streamed_branch_reaches_the_client_in_its_own_words_wherever_the_bytes_are_cut():
    made = planned("/v1/chat/completions", ASKED | {"stream": True})
    chunk = called("delta", "files_read") | {"model": "/models/gpt"}
    data = b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"
    undos = [make() for make in made.restore.undos]
    policy = load_policy("p.yaml", text=POLICY, environ={})
    reader = Reader(Branch(data[:40], data[40:]), policy.limits, made.backend.timeouts, Allowance(1 << 20), 1, undos)
    chunks = [piece.chunk async for some in reader.pieces(include_usage=False) for piece in some]
    assert chunks == [called("delta", "files.read") | {"model": "gpt-4o"}]


async def test_a_whole_branch_reaches_the_client_in_its_own_words():
    made = planned("/v1/chat/completions", ASKED)
    answer = called("message", "files_read") | {"model": "/models/gpt"}
    branch = Branch(json.dumps(answer).encode())
    branch.headers = (("Content-Type", "application/json"),)
    policy = load_policy("p.yaml", text=POLICY, environ={})
    undos = [make() for make in made.restore.undos]
    reader = Reader(branch, policy.limits, made.backend.timeouts, Allowance(1 << 20), 1, undos)
    assert await reader.answer() == called("message", "files.read") | {"model": "gpt-4o"}


def test_a_refusal_that_names_the_model_is_repaired_and_the_client_still_sees_its_own():
    policy = load_policy("p.yaml", text=POLICY, environ={})
    made = plan(Request("POST", "/v1/chat/completions", "", (), b'{"model": "mine", "messages": []}'), policy)
    again = replan(made, Failure(400, "Server is pinned to '/models/m'; requested 'mine'."), policy)
    assert again.bodies == (b'{"model":"/models/m","messages":[]}',)
    assert restored(again, {"model": "/models/m"}) == {"model": "mine"}


def test_a_path_without_chunks_is_restored_too():
    made = planned("/v1/embeddings", {"model": "gpt-4o", "input": "a"})
    (sent,) = map(json.loads, made.bodies)
    assert sent == {"model": "gpt", "input": "a"}
    assert restored(made, {"model": "gpt", "data": []}) == {"model": "gpt-4o", "data": []}


def test_a_request_in_the_backends_words_goes_on_as_it_came():
    body = {"model": "llama", "messages": [], "tools": [{"type": "function", "function": {"name": "ok"}}]}
    made = planned("/v1/chat/completions", body)
    assert (made.bodies, made.restore, made.applied) == ((), None, ())
