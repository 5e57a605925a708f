"""What the OpenAI SDK makes of answers and errors that came through the proxy."""

import json

import openai
import pytest
from openai import AsyncOpenAI

HELLO = [{"role": "user", "content": "hello"}]
TEXT = "Hello! I am a tiny test model."
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def repairs_of(answer):
    return answer.headers.get("Mendproxy-Repairs")


def texts_of(chunks):
    """Return the text of each choice, by its index."""
    texts = {}
    take(chunks, texts)
    return texts


def take(chunks, texts):
    """Add to `texts` what each choice says, by its index; what came before a failure stays in it."""
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")


def finishes_of(chunks):
    return sorted(
        (choice.index, choice.finish_reason) for chunk in chunks for choice in chunk.choices if choice.finish_reason
    )


# Chat, streamed


def test_meta_info_comes_on_the_last_chunk_of_a_stream(client):
    raw = client.chat.completions.with_raw_response.create(
        model="sglang", messages=HELLO, stream=True, extra_body={"return_meta_info": True}
    )
    chunks = list(raw.parse())
    assert repairs_of(raw) == 'sglang/meta-info-streamed;loss="none"'
    assert texts_of(chunks) == {0: TEXT}
    assert sum("meta_info" in chunk.choices[0].model_extra for chunk in chunks) == 1
    meta_info = chunks[-1].choices[0].model_extra["meta_info"]
    assert meta_info["finish_reason"]["type"] == chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[0].choices[0].delta.role == "assistant"


def test_meta_info_comes_on_the_last_chunk_of_each_of_three_choices_and_the_usage_after_them(client):
    stream = client.chat.completions.create(
        model="sglang",
        messages=HELLO,
        stream=True,
        n=3,
        stream_options={"include_usage": True},
        extra_body={"return_meta_info": True},
    )
    chunks = list(stream)
    told = [chunk.choices[0].index for chunk in chunks if chunk.choices and "meta_info" in chunk.choices[0].model_extra]
    assert sorted(told) == [0, 1, 2]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0
    assert finishes_of(chunks) == [(0, "stop"), (1, "stop"), (2, "stop")]


def test_three_choices_of_a_backend_that_streams_but_one(client):
    with client.chat.completions.stream(model="llamafactory", messages=HELLO, n=3, temperature=0.7) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert "content.delta" in kinds
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == [TEXT] * 3
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 3


def test_a_greedy_answer_is_copied_to_all_choices(client):
    with client.chat.completions.stream(model="llamafactory", messages=HELLO, n=3, temperature=0) as stream:
        answer = stream.get_final_completion()
    assert [choice.message.content for choice in answer.choices] == [TEXT] * 3


def test_a_tool_call_of_a_backend_that_can_t_stream_it(client):
    with client.chat.completions.stream(model="llamafactory", messages=WEATHER, tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        (choice,) = stream.get_final_completion().choices
    (call,) = choice.message.tool_calls
    assert "tool_calls.function.arguments.done" in kinds
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    assert call.id.startswith("call_")
    assert choice.finish_reason == "tool_calls"


def test_three_choices_of_a_backend_that_streams_them_are_relayed(client):
    raw = client.chat.completions.with_raw_response.create(model="sglang", messages=HELLO, stream=True, n=3)
    chunks = list(raw.parse())
    assert repairs_of(raw) is None
    assert texts_of(chunks).keys() == {0, 1, 2}
    assert finishes_of(chunks) == [(0, "stop"), (1, "stop"), (2, "stop")]


def test_three_choices_of_three_branches_have_one_identity_and_one_usage(client):
    raw = client.chat.completions.with_raw_response.create(
        model="fanned", messages=HELLO, stream=True, n=3, stream_options={"include_usage": True}
    )
    chunks = list(raw.parse())
    assert repairs_of(raw) == 'fans;loss="none"'
    assert len({chunk.id for chunk in chunks}) == 1
    assert texts_of(chunks) == {0: TEXT, 1: TEXT, 2: TEXT}
    assert [chunk.choices[0].index for chunk in chunks[:3]] == [0, 1, 2]
    assert [chunk.usage is not None for chunk in chunks].count(True) == 1
    assert chunks[-1].choices == []


async def test_an_async_client_streams_too(proxy):
    async with (
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
        client.chat.completions.stream(model="fanned", messages=HELLO, n=2) as stream,
    ):
        answer = await stream.get_final_completion()
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]


# Chat, whole


def test_a_whole_answer_of_three_branches(client):
    answer = client.chat.completions.create(model="fanned", messages=HELLO, n=3)
    one = client.chat.completions.create(model="fanned", messages=HELLO)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == [TEXT] * 3
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens
    assert answer.usage.completion_tokens == 3 * one.usage.completion_tokens
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_whole_answer_of_a_backend_that_is_asked_for_a_stream(client):
    raw = client.chat.completions.with_raw_response.create(model="streamed", messages=HELLO)
    answer = raw.parse()
    assert repairs_of(raw) == 'streams;loss="none"'
    assert raw.headers["Content-Type"] == "application/json"
    assert answer.object == "chat.completion"
    assert (answer.choices[0].message.role, answer.choices[0].message.content) == ("assistant", TEXT)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 0


@pytest.mark.parametrize("model", ["sglang", "streamed"])
def test_tool_calls_of_a_whole_answer(client, model):
    answer = client.chat.completions.create(model=model, messages=WEATHER, tools=TOOLS, tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})


# What an answer holds beside its text


@pytest.mark.parametrize("model", ["sglang", "fanned", "streamed"])
def test_logprobs_are_kept(client, model):
    answer = client.chat.completions.create(model=model, messages=HELLO, n=2, logprobs=True, top_logprobs=2)
    for choice in answer.choices:
        assert "".join(each.token for each in choice.logprobs.content).startswith(choice.message.content)
        assert all(len(each.top_logprobs) == 2 for each in choice.logprobs.content)


@pytest.mark.parametrize("extra", [{}, {"return_meta_info": True}], ids=["relayed", "exploded"])
def test_logprobs_of_a_stream_are_kept(client, extra):
    stream = client.chat.completions.create(
        model="sglang", messages=HELLO, stream=True, logprobs=True, top_logprobs=1, extra_body=extra
    )
    said = [chunk.choices[0].logprobs.content for chunk in stream if chunk.choices[0].logprobs]
    assert "".join(each.token for content in said for each in content or ()).startswith(TEXT)


THINKS = {"chat_template_kwargs": {"enable_thinking": True}, "separate_reasoning": True}


@pytest.mark.parametrize("extra", [{}, {"return_meta_info": True}], ids=["relayed", "exploded"])
def test_reasoning_of_a_stream_is_kept(client, extra):
    stream = client.chat.completions.create(model="sglang", messages=HELLO, stream=True, extra_body=THINKS | extra)
    deltas = [chunk.choices[0].delta for chunk in stream]
    reasoning = "".join(delta.model_extra.get("reasoning_content") or "" for delta in deltas)
    assert reasoning.startswith("The user wrote 5 characters.")
    assert "".join(delta.content or "" for delta in deltas) == TEXT


@pytest.mark.parametrize("model", ["sglang", "fanned", "streamed"])
def test_reasoning_of_a_whole_answer_is_kept(client, model):
    answer = client.chat.completions.create(model=model, messages=HELLO, n=2, extra_body=THINKS)
    for choice in answer.choices:
        assert choice.message.model_extra["reasoning_content"].startswith("The user wrote 5 characters.")


# Completions


def test_completions_of_two_prompts_and_two_choices_are_streamed_by_branches(client):
    stream = client.completions.create(model="fanned", prompt=["hello", "ping"], n=2, stream=True)
    texts = {}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    single = [client.completions.create(model="fanned", prompt=prompt).choices[0].text for prompt in ("hello", "ping")]
    assert texts == {0: single[0], 1: single[0], 2: single[1], 3: single[1]}


def test_completions_of_two_prompts_and_two_choices_are_whole_by_branches(client):
    answer = client.completions.create(model="fanned", prompt=["hello", "ping"], n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text != answer.choices[2].text == answer.choices[3].text


# Errors


def ask(client, model="sglang", **given):
    return client.chat.completions.create(model=model, messages=HELLO, **given)


REFUSED = [
    pytest.param({"extra_body": {"bad": True}}, 400, ("too_bad", "bad"), "It is bad. (rule 'bad')", id="by a rule"),
    pytest.param(
        {"model": "fanned", "n": 9},
        400,
        ("too_many_choices", "n"),
        "n is 9, and at most 8 choices can be asked for here: ask for fewer, in several requests. (rule 'fans')",
        id="for too many choices",
    ),
    pytest.param(
        {"extra_body": {"sharp": 1}, "extra_headers": {"Prefer": "handling=strict"}},
        400,
        ("repair_refused", None),
        "The rule 'sharp' would repair this request at a loss (field sharp), and the request prefers handling=strict.",
        id="rather than repaired at a loss",
    ),
    pytest.param(
        {"model": "none"},
        404,
        ("model_not_found", "model"),
        "The model 'none' does not exist: no backend of the proxy's policy has it.",
        id="for a model that nobody has",
    ),
    pytest.param(
        {"model": "dying-early", "stream": True},
        502,
        ("http_response_incomplete", None),
        "The backend cut its answer off.",
        id="since the backend died before it said a word",
    ),
]
KINDS = {400: openai.BadRequestError, 404: openai.NotFoundError, 502: openai.InternalServerError}


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("given", "status", "where", "message"), REFUSED)
def test_a_refusal_of_the_proxy_s_own(client, given, status, where, message, is_stream):
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, **({"stream": is_stream} | given))
    error = caught.value
    assert isinstance(error, KINDS[status])
    assert (error.status_code, error.code, error.param) == (status, *where)
    assert error.body["message"] == message
    assert error.response.headers["Proxy-Status"].startswith("mendproxy;error=")
    assert error.request_id


def test_a_strict_client_is_told_that_its_wish_was_heard(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, extra_body={"sharp": 1}, extra_headers={"Prefer": "handling=strict"})
    assert caught.value.response.headers["Preference-Applied"] == "handling=strict"


def test_a_refusal_of_the_backend_s_own_goes_through(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, model="fanned", top_p=0)
    assert caught.value.status_code == 400
    assert caught.value.body["message"] == "top_p must be in (0, 1], got 0.0."
    assert "Proxy-Status" not in caught.value.response.headers


def test_a_stream_that_the_backend_cuts_ends_with_an_error(client):
    texts = {}
    with pytest.raises(openai.APIError) as caught:
        take(ask(client, model="dying", stream=True), texts)
    assert texts == {0: "Hel"}
    assert not isinstance(caught.value, openai.APIStatusError)
    assert caught.value.code == "http_response_incomplete"
    assert caught.value.message == "The backend cut its answer off."


def test_a_stream_of_branches_that_the_backend_cuts_ends_with_an_error(client):
    texts = {}
    with pytest.raises(openai.APIError) as caught:
        take(ask(client, model="dying-fanned", stream=True, n=2), texts)
    assert "Hel" in texts.values()
    assert caught.value.code == "http_response_incomplete"
    assert caught.value.body["index"] in (0, 1)
