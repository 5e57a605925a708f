"""What a refusal says, wherever its body holds it. The bodies were recorded from the servers that the ids name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.refusals import Failure, read_refusal, refusal_of

MISSING = (
    "{\"object\":\"error\",\"message\":\"1 validation error:\\n  {'type': 'missing', 'loc': ('body', 'messages'), "
    "'msg': 'Field required', 'input': {'model': 'tiny'}}\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}"
)
CONTEXT = (
    "This model's maximum context length is 2048 tokens. However, you requested 5012 tokens (5012 in the messages, "
    "None in the completion). Please reduce the length of the messages or completion."
)

CASES = [
    pytest.param(
        400,
        '{"object":"error","message":"top_p must be in (0, 1], got 0.0.","type":"BadRequestError",'
        '"param":null,"code":400}',
        Failure(400, "top_p must be in (0, 1], got 0.0.", code="400"),
        id="sglang: a value out of range",
    ),
    pytest.param(
        400,
        MISSING,
        Failure(400, json.loads(MISSING)["message"] + "\nmissing at body.messages: Field required", code="400"),
        id="sglang: a validation text, and its complaint on a line of its own",
    ),
    pytest.param(
        500,
        '{"object":"error","message":"Internal server error: unhashable type: \'list\'","type":"InternalServerError",'
        '"param":null,"code":500}',
        Failure(500, "Internal server error: unhashable type: 'list'", code="500"),
        id="sglang: a crash",
    ),
    pytest.param(
        404,
        '{"error":{"message":"The model \'nope\' does not exist","type":"invalid_request_error","param":"model",'
        '"code":"model_not_found"}}',
        Failure(404, "The model 'nope' does not exist", code="model_not_found", param="model"),
        id="sglang: no such model",
    ),
    pytest.param(
        503,
        '{"error": {"object": "error", "message": "The request queue is full.", "type": "SERVICE_UNAVAILABLE", '
        '"param": null, "code": 503}}',
        Failure(503, "The request queue is full.", code="503"),
        id="sglang: an error event's data",
    ),
    pytest.param(
        400,
        '{"error":{"message":"validation failed: temperature must be a non-negative finite number, got -1",'
        '"code":400}}',
        Failure(400, "validation failed: temperature must be a non-negative finite number, got -1", code="400"),
        id="sglang's Rust front: an error event's data",
    ),
    pytest.param(404, '{"detail":"Not Found"}', Failure(404, "Not Found"), id="FastAPI: no such path"),
    pytest.param(
        400,
        '{"detail":"Only supports u/a/u/a/u..."}',
        Failure(400, "Only supports u/a/u/a/u..."),
        id="LlamaFactory: a text",
    ),
    pytest.param(
        422,
        '{"detail":[{"type":"missing","loc":["body","tools",0,"function","description"],"msg":"Field required",'
        '"input":{"name":"f","parameters":{"type":"object"}}}]}',
        Failure(422, "missing at body.tools[0].function.description: Field required"),
        id="LlamaFactory: a validation error",
    ),
    pytest.param(
        422,
        '{"detail":[{"type":"string_type","loc":["body","stop","str"],"msg":"Input should be a valid string",'
        '"input":5},'
        '{"type":"list_type","loc":["body","stop","list[str]"],"msg":"Input should be a valid list","input":5}]}',
        Failure(
            422,
            "string_type at body.stop: Input should be a valid string (got 5)\n"
            "list_type at body.stop: Input should be a valid list (got 5)",
        ),
        id="LlamaFactory: two validation errors",
    ),
    pytest.param(500, "Internal Server Error", Failure(500, "Internal Server Error"), id="LlamaFactory: a crash"),
    pytest.param(
        422,
        '{"detail":"Unexpected fields in the request: {\'return_meta_info\'}"}',
        Failure(422, "Unexpected fields in the request: {'return_meta_info'}"),
        id="transformers serve: an unknown field",
    ),
    pytest.param(
        422,
        '{"detail":[{"type":"json_invalid","loc":["body",48],"msg":"JSON decode error","input":{},"ctx":{"error":'
        '"Expecting property name enclosed in double quotes"}}]}',
        Failure(422, "json_invalid at body[48]: JSON decode error"),
        id="transformers serve: no JSON",
    ),
    pytest.param(
        200,
        '{"error": "`max_new_tokens` must be greater than 0, but is 0."}',
        Failure(200, "`max_new_tokens` must be greater than 0, but is 0."),
        id="transformers serve: an error that is a text",
    ),
    pytest.param(
        400,
        json.dumps(
            {
                "error": {
                    "message": CONTEXT,
                    "type": "invalid_request_error",
                    "param": "messages",
                    "code": "context_length_exceeded",
                }
            }
        ),
        Failure(400, CONTEXT, code="context_length_exceeded", param="messages"),
        id="llama-cpp-python: too long",
    ),
    pytest.param(
        500,
        '{"error":{"message":"list object has no element 0","type":"internal_server_error","param":null,"code":null}}',
        Failure(500, "list object has no element 0"),
        id="llama-cpp-python: a crash",
    ),
]


@pytest.mark.parametrize(("status", "body", "expected"), CASES)
def test_a_recorded_refusal_is_read(status, body, expected):
    assert read_refusal(status, body.encode()) == expected


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(b"", "", id="an empty body"),
        pytest.param(b"<html>502</html>", "<html>502</html>\n502", id="a gateway's page and its words"),
        pytest.param(b"\xff\xfe", "\ufffd\ufffd", id="bytes that are no text"),
        pytest.param(b'"just text"', "just text", id="a JSON text"),
        pytest.param(b'{"message": "m", "detail": "d"}', "m\nd", id="message before detail"),
        pytest.param(b'{"error": "", "message": "m"}', "m", id="an empty error and a message"),
        pytest.param(b'{"error": {"error": {"message": "m"}}}', "m", id="an error in an error"),
        pytest.param(b'{"error": {"message": {"detail": ["a", "b"]}}}', "a\nb", id="a message that is an object"),
        pytest.param(b'{"detail": [{"msg": "m"}]}', "m", id="a validation error without a place"),
        pytest.param(b'{"detail": [{"loc": "body", "msg": "m"}]}', "m", id="a place that is no list"),
        pytest.param(b"[1, null, true]", "", id="a list of nothing"),
        pytest.param(b"null", "null", id="null"),
        pytest.param(b"{}", "", id="an empty object"),
    ],
)
def test_the_text_of_an_odd_body(body, text):
    assert read_refusal(400, body) == Failure(400, text)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        pytest.param(400, "400", id="a number"),
        pytest.param("bad", "bad", id="a word"),
        pytest.param(None, None, id="null"),
        pytest.param(True, None, id="a boolean is none"),
        pytest.param(["a"], None, id="a list is none"),
    ],
)
def test_a_code_is_a_word_or_a_number(code, told):
    assert refusal_of(400, {"error": {"message": "m", "code": code}}) == Failure(400, "m", code=told)


def test_how_a_stream_failed_is_kept():
    assert read_refusal(None, b"x", stream="empty") == Failure(None, "x", stream="empty")


@given(st.binary())
def test_any_bytes_say_something_or_nothing(body):
    assert isinstance(read_refusal(500, body).text, str)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "detail", "msg", "loc", "code", "param"]), inner, max_size=4
        )
    ),
)


@given(JSON)
def test_any_json_says_something_or_nothing(value):
    failure = refusal_of(400, value)
    assert isinstance(failure.text, str)
    assert isinstance(failure.code, str | None)
    assert isinstance(failure.param, str | None)


@pytest.mark.parametrize("depth", [4, 100, 900, 5000])
@pytest.mark.parametrize(
    ("opens", "closes"), [("[", "]"), ('{"error":', "}"), ('{"detail":[', "]}")], ids=["lists", "errors", "details"]
)
def test_a_refusal_nested_to_any_depth_is_read_or_passed_over(opens, closes, depth):
    failure = read_refusal(400, (opens * depth + '"why"' + closes * depth).encode())
    assert failure.status == 400
    assert "why" in failure.text or depth > 4
