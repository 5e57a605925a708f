"""What spans are called."""

import pytest

from proxy.conventions import bounded, error_type, operation_of, request_name
from proxy.errors import BackendFault, ClientFault


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/chat/completions", "chat"),
        ("/mounted/v1/chat/completions", "chat"),
        ("/v1/completions", "text_completion"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/models", None),
        ("/generate", None),
    ],
)
def test_what_a_path_does_has_the_name_of_the_conventions(path, operation):
    assert operation_of(path) == operation


@pytest.mark.parametrize(
    ("method", "route", "name"),
    [
        ("POST", "/v1/chat/completions", "POST /v1/chat/completions"),
        ("GET", None, "GET"),
        ("MADEUP", None, "HTTP"),
        ("MADEUP", "/v1/models", "HTTP /v1/models"),
    ],
)
def test_a_name_is_one_of_few(method, route, name):
    assert request_name(method, route) == name


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        pytest.param(BackendFault("SECRET", token="dns_error"), "dns_error", id="one that has a word for itself"),
        pytest.param(ClientFault("SECRET"), "http_request_error", id="a client's"),
        pytest.param(TimeoutError("SECRET"), "TimeoutError", id="any other"),
    ],
)
def test_an_error_is_told_by_its_kind(error, kind):
    assert error_type(error) == kind


@pytest.mark.parametrize(
    ("text", "told"),
    [("tiny", "tiny"), ("m" * 300, "m" * 256), ("Ü🙂", "Ü🙂"), ("a\udcffb", "a\\udcffb")],
    ids=["as it is", "cut", "in any script", "what is no text written out"],
)
def test_what_a_client_named_is_bounded(text, told):
    assert bounded(text) == told
