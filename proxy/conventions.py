"""What spans and their attributes are called, in one place; no prompt, body, header value or key is among them.

    request ─► SERVER span `POST /v1/chat/completions`
    branch  ─► CLIENT span `chat MODEL`, one for each upstream request

Source: OpenTelemetry semantic conventions 1.37: HTTP spans, GenAI client spans, general attributes.
"""

from __future__ import annotations

from typing import Final

from proxy.admission import METHODS
from proxy.body import UnreadableBody
from proxy.errors import ProxyError
from proxy.plans import Plan, kind_of
from proxy.policy import Backend

Attributes = dict[str, str | int | tuple[str, ...]]

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.37.0"

HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"
HTTP_VERSION: Final = "network.protocol.version"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
CHOICES: Final = "gen_ai.request.choice.count"
RULES: Final = "mendproxy.rules"
OUTCOME: Final = "mendproxy.outcome"
BACKEND: Final = "mendproxy.backend"
BRANCH: Final = "mendproxy.branch"

# Backends of all kinds speak OpenAI's API, which is what is known of them.
_PROVIDER: Final = "openai"
_OPERATIONS: Final = {"chat": "chat", "text": "text_completion"}
_METHODS: Final = frozenset(METHODS.split(", "))
_OTHER_METHOD: Final = "_OTHER"
# What a client makes up is bounded: no backend's model or path is as long.
_MAX_CHARACTERS: Final = 256


def of_request(method: str, path: str, scheme: str, version: str) -> Attributes:
    """Return what is known of a request before it is answered."""
    known = method if method in _METHODS else _OTHER_METHOD
    return {HTTP_METHOD: known, URL_PATH: bounded(path), URL_SCHEME: scheme, HTTP_VERSION: version}


def bounded(text: str) -> str:
    """Return what a client named, cut where it is too long, its bytes that are no UTF-8 written out."""
    return text[:_MAX_CHARACTERS].encode("utf-8", "backslashreplace").decode()


def request_name(method: str, route: str | None) -> str:
    """Return a SERVER span's name; `route` is a path that is one of few."""
    known = method if method in _METHODS else "HTTP"
    return known if route is None else f"{known} {route}"


def of_branch(plan: Plan, branch: int, backend: Backend, method: str, address: tuple[str, int]) -> Attributes:
    """Return what is known of an upstream request; `address` is the host and port where the backend is."""
    told: Attributes = {HTTP_METHOD: method, SERVER_ADDRESS: address[0], SERVER_PORT: address[1]}
    told |= {BACKEND: backend.name, BRANCH: branch}
    operation = operation_of(plan.facts.path)
    if operation is not None:
        told |= {OPERATION: operation, PROVIDER: _PROVIDER}
    model = model_of(plan)
    if model is not None:
        told[MODEL] = model
    choices = _choices_of(plan)
    if choices is not None:
        told[CHOICES] = choices
    return told


def branch_name(plan: Plan, method: str) -> str:
    """Return a CLIENT span's name."""
    operation, model = operation_of(plan.facts.path), model_of(plan)
    if operation is None:
        return method
    return operation if model is None else f"{operation} {model}"


def operation_of(path: str) -> str | None:
    """Return what GenAI calls that which a path does."""
    if path.endswith("/embeddings"):
        return "embeddings"
    kind = kind_of(path)
    return None if kind is None else _OPERATIONS[kind]


def model_of(plan: Plan) -> str | None:
    """Return the model as the backend is asked for it."""
    model = _field(plan, "model") if plan.bodies else plan.facts.model
    return bounded(model) if isinstance(model, str) and model else None


def _choices_of(plan: Plan) -> int | None:
    """Return how many choices a branch asks for, where that is not one."""
    n = 1 if len(plan.bodies) > 1 or plan.draft.fan is not None else _field(plan, "n")
    return n if isinstance(n, int) and not isinstance(n, bool) and n != 1 else None


def _field(plan: Plan, name: str) -> object:
    try:
        return plan.draft.body.get(name)
    except UnreadableBody:
        return None


def error_type(error: BaseException) -> str:
    """Return what an error is called: RFC 9209's word for one of ours, else its class."""
    return (error.token or type(error).__name__) if isinstance(error, ProxyError) else type(error).__name__
