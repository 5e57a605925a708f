"""What the repairs of messages promise together: an order that strict chat templates and APIs take."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.body import Body
from proxy.repairs import REPAIRS
from proxy.repairs.card import Draft

TEXTS = st.sampled_from(["", "a", "b"])
CONTENTS = TEXTS | st.none() | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=2)
IDS = st.sampled_from(["c1", "c2", "call_1", "", None])
CALLS = st.lists(st.fixed_dictionaries({}, optional={"id": IDS}), min_size=1, max_size=3)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer", "user"]), "content": CONTENTS})
    | st.fixed_dictionaries({"role": st.just("assistant"), "content": CONTENTS}, optional={"tool_calls": CALLS})
    | st.fixed_dictionaries({"role": st.just("tool"), "content": CONTENTS}, optional={"tool_call_id": IDS}),
    min_size=1,
    max_size=8,
)

ALTERNATING: list[dict[str, Any]] = [
    {
        "merge_messages": {
            "system": "first",
            "neighbours": [["user", "tool"], ["assistant", "function"]],
            "drop_empty": True,
            "leading_assistant": "system",
            "only_system": "user",
        }
    },
    {"insert_message": {"role": "user", "content": "Go on.", "after": "start", "before": "assistant"}},
    {"insert_message": {"role": "user", "content": "Continue.", "after": "assistant", "before": "end"}},
]
PAIRED: list[dict[str, Any]] = [
    {"pair_tool_calls": {"orphans": "drop", "missing": "stub", "ids": "make", "order": "fix"}}
]
SIDES = {"user": 0, "tool": 0, "assistant": 1}


def repaired(messages: list[Any], repairs: list[dict[str, Any]]) -> list[Any]:
    draft = Draft(Body.of({"messages": messages}))
    for repair in repairs:
        ((name, options),) = repair.items()
        card = REPAIRS[name]
        change = card.build(card.options.model_validate(options))(draft)
        draft = change.draft if change is not None else draft
    return draft.body["messages"]


@given(MESSAGES)
def test_user_and_assistant_take_turns_behind_one_system_message(messages):
    roles = [message["role"] for message in repaired(messages, ALTERNATING)]
    turns = roles[1:] if roles[0] in ("system", "developer") else roles
    assert [SIDES[role] for role in turns] == [index % 2 for index in range(len(turns))]
    assert len(turns) % 2 == 1


@given(MESSAGES)
def test_no_word_is_lost_where_messages_are_merged(messages):
    def said(messages: list[Any]) -> list[str]:
        contents = (message["content"] or "" for message in messages)
        texts = (text for content in contents for text in ([content] if isinstance(content, str) else parts(content)))
        return sorted(letter for text in texts for letter in text if letter in "ab")

    def parts(content: list[Any]) -> list[str]:
        return [part["text"] for part in content]

    assert said(repaired(messages, ALTERNATING[:1])) == said(messages)


@given(MESSAGES)
def test_each_call_is_followed_by_its_results_in_order(messages):
    after = repaired(messages, PAIRED)
    ids = [call["id"] for message in after for call in message.get("tool_calls") or []]
    assert len(set(ids)) == len(ids)
    owed: list[str] = []
    for message in after:
        if message["role"] == "tool":
            assert owed.pop(0) == message["tool_call_id"]
        else:
            assert not owed
            owed = [call["id"] for call in message.get("tool_calls") or []]
    assert not owed


@given(MESSAGES)
def test_pairing_touches_nothing_but_tools(messages):
    def others(messages: list[Any]) -> list[Any]:
        return [message for message in messages if message["role"] != "tool" and "tool_calls" not in message]

    assert others(repaired(messages, PAIRED)) == others(messages)
