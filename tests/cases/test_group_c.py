"""Cases of group C of which the OpenAI SDK's own accumulator is the judge: merged streams in any interleaving."""

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from proxy.merge import Merger, Spread


def branch_of(name, deltas, finish):
    """Return the chunks of one branch: its deltas, and its end."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None, "logprobs": None} for delta in deltas]
    choices.append({"index": 0, "delta": {"role": "assistant"}, "finish_reason": finish, "matched_stop": None})
    head = {"id": f"chatcmpl-{name}", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return [head | {"choices": [choice]} for choice in choices]


def spoken(name):
    return branch_of(name, [{"role": "assistant", "content": ""}, {"role": "assistant", "content": f"{name}1"},
                            {"content": f"{name}2"}], "stop")  # fmt: skip


def silent(name):
    return branch_of(name, [], "length")


def called(name):
    def call(index, **function):
        told = {"id": f"{name}{index}", "type": "function"} if "name" in function else {}
        return {"tool_calls": [{"index": index, **told, "function": function}]}

    deltas = [call(0, name="f", arguments=""), call(1, name="g", arguments='{"y"'), call(0, arguments='{"x":'),
              call(1, arguments=":2"), call(0, arguments="1}"), call(1, arguments="}")]  # fmt: skip
    return branch_of(name, [{"role": "assistant", "content": None}, *deltas], "tool_calls")


def merged(branches, order):
    """Return the merged chunks; `order` says whose chunk comes next."""
    merger = Merger(
        spreads=[Spread(len(branches), branch) for branch in range(len(branches))],
        total=len(branches),
        kind="chat",
        include_usage=True,
        usage="once",
        fallback_id="made-up",
        created=1,
        model="m",
    )
    left, chunks = [list(branch) for branch in branches], []
    for branch in order:
        chunks += merger.feed(branch, left[branch].pop(0))
        chunks += [] if left[branch] else merger.end(branch)
    return chunks


def accumulated(chunks):
    """Return the answer that the SDK makes of a stream. Raises whatever it raises."""
    state = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    return state.current_completion_snapshot


def said(choice):
    """Return what a choice of the SDK's says, without its index."""
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return choice.message.role, choice.message.content or "", calls, choice.finish_reason


@settings(max_examples=80)
@given(st.lists(st.sampled_from([spoken, silent, called]), min_size=2, max_size=4), st.data())
def test_c02_c04_c13_the_sdk_s_accumulator_reads_any_interleaving(makers, data):
    branches = [maker("abcd"[number]) for number, maker in enumerate(makers)]
    turns = [number for number, branch in enumerate(branches) for _ in branch]
    found = accumulated(merged(branches, data.draw(st.permutations(turns))))
    alone = [accumulated(merged([branch], [0] * len(branch))).choices[0] for branch in branches]
    assert [choice.index for choice in found.choices] == list(range(len(branches)))
    assert [said(choice) for choice in found.choices] == [said(choice) for choice in alone]


def test_c13_the_sdk_makes_of_one_branch_what_the_backend_said():
    [choice] = accumulated(merged([called("a")], [0] * 8)).choices
    assert said(choice) == ("assistant", "", [("a0", "f", '{"x":1}'), ("a1", "g", '{"y":2}')], "tool_calls")
