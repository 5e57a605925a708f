"""The policy file's types, strict: what pydantic checks, and what the JSON Schema and the docs are made from.

A rule's `when` and `repair` are left as they came: matchers and repairs have compilers of their own.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema

from proxy.matching import BadTest, compile_regex
from proxy.policy.units import Duration, Size
from proxy.policy.urls import check_url

NAME: Final = r"[a-z0-9][a-z0-9._-]*"


def _regex(text: str) -> str:
    compile_regex(text)
    return text


def _not_zero(seconds: float) -> float:
    if seconds == 0:
        raise ValueError("must be more than 0")
    return seconds


def _one_or_more(raw: Any) -> Any:
    if raw == []:
        raise BadTest.at("an empty list never holds: name at least one, or leave the key out")
    return raw


def _known_version(number: int) -> int:
    if number != 1:
        raise ValueError("this mendproxy reads policies of `version: 1`")
    return number


Version = Annotated[int, AfterValidator(_known_version), WithJsonSchema({"const": 1})]
Name = Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
RuleId = Annotated[str, StringConstraints(pattern=f"^({NAME}/)?{NAME}$")]
Text = Annotated[str, StringConstraints(min_length=1)]
Regex = Annotated[str, AfterValidator(_regex)]
Timeout = Annotated[Duration, AfterValidator(_not_zero)]
Status = Annotated[int, Field(ge=300, le=599)]
Matcher = Annotated[Any, WithJsonSchema({"type": "object"})]
Repairs = Annotated[Any, WithJsonSchema({"type": "array", "minItems": 1, "items": {"type": "object"}})]
StreamEnd = Literal["empty", "error", "silent"]


class Strict(BaseModel):
    """A mapping with fixed keys: no other key, and no value of another type. Built when a first one is read."""

    model_config = ConfigDict(strict=True, defer_build=True, extra="forbid", frozen=True)


class Timeouts(Strict):
    """How long to wait for a backend."""

    connect: Timeout = Field(5.0, description="Until the connection stands.")
    first_content: Timeout = Field(
        600.0, description="Until the headers, and until content; comments and role-only chunks don't count."
    )
    idle: Timeout = Field(300.0, description="Between two pieces of an answer.")


class Backend(Strict):
    """An OpenAI-compatible server that requests are sent to."""

    url: Annotated[str, AfterValidator(check_url)] = Field(
        description="Where it is: http(s)://host[:port][/base], or standin://sglang, standin://llamafactory."
    )
    models: Annotated[list[Text], Field(min_length=1)] = Field(
        ["*"], description="Globs; the first backend with one that matches the request's model serves it."
    )
    presets: list[str] = Field([], description="Rule packs to run before the policy's rules, in this order.")
    api_key: str | None = Field(
        None, description="Replaces the client's Authorization towards the backend; empty: the client's goes through."
    )
    timeouts: Timeouts = Field(Timeouts(), description="How long to wait for it.")
    max_concurrency: Annotated[int, Field(ge=0)] = Field(0, description="Branches in flight at a time; 0 = no limit.")


class Limits(Strict):
    """What the proxy holds in memory for one request, and for all of them, at most."""

    body: Annotated[Size, Field(ge=1)] = Field(64 << 20, description="A request's body.")
    response: Annotated[Size, Field(ge=1)] = Field(64 << 20, description="An answer that has to be held whole.")
    event: Annotated[Size, Field(ge=1)] = Field(8 << 20, description="One event of a stream.")
    branches: Annotated[int, Field(ge=1)] = Field(16, description="Upstream requests made of one request.")
    total: Annotated[Size, Field(ge=1)] = Field(1 << 30, description="What all requests hold together; above, 503.")
    connections: Annotated[int, Field(ge=1)] = Field(10_000, description="Clients' connections; above, 503.")


class Auth(Strict):
    """Who may use the proxy."""

    keys: list[str] = Field([], description="Bearer tokens; a client must send one. Empty strings don't count.")


class OnError(Strict):
    """Which failures of a backend a rule is tried after; every given key must hold."""

    status: Annotated[Status | list[Status], AfterValidator(_one_or_more)] | None = Field(
        None, description="The refusal's status, or a list."
    )
    message: Regex | None = Field(
        None,
        description="Regular expression searched in the error's text, ignoring case, over lines.",
    )
    each: Regex | None = Field(None, description="Regular expression; the repairs run for each of its matches.")
    code: str | int | None = Field(None, description="The error's code.")
    param: str | None = Field(None, description="The error's param.")
    stream: Annotated[StreamEnd | list[StreamEnd], AfterValidator(_one_or_more)] | None = Field(
        None, description="How an event stream failed before any content: empty, error, silent, or a list of them."
    )
    choices: Literal["fewer"] | None = Field(None, description="`fewer`: fewer choices came than were asked for.")


class Learn(Strict):
    """Apply a repair that worked to later requests without the failing round."""

    for_: Timeout = Field(alias="for", description="How long to remember it.")
    approve: bool = Field(False, description="Only after an operator has approved it.")


class Rule(Strict):
    """When a request is to be repaired, and how."""

    id: RuleId = Field(description="The pattern met, in lower case: meta-info-streamed.")
    about: str | None = Field(None, description="Why the rule is there.")
    when: Matcher = Field(None, description="The matcher; without `path` for the two completion endpoints.")
    on_error: OnError | None = Field(None, description="Makes the rule reactive: tried when the backend failed so.")
    repair: Repairs = Field(description="A list of one-key mappings, carried out in order.")
    loses: Text | None = Field(None, description="What the client loses, in place of the repairs' words; or nothing.")
    mode: Literal["apply", "observe"] = Field("apply", description="`observe`: count and log, change nothing.")
    learn: Learn | None = Field(None, description="Remember that the repair worked.")


class PolicyFile(Strict):
    """A mendproxy policy."""

    version: Version = Field(description="The policy language's version.")
    backends: Annotated[dict[Name, Backend], Field(min_length=1)] = Field(
        description="By name, tried in order: the first whose models match."
    )
    limits: Limits = Field(Limits(), description="Bounds on memory and branches.")
    auth: Auth = Field(Auth(), description="Who may use the proxy.")
    keep_alive: Duration = Field(15.0, description="Time between comments while a streaming client waits; 0 = never.")
    disable: list[str] = Field([], description="Full ids of preset rules that are switched off.")
    rules: list[Rule] = Field([], description="Run after the presets' rules, top to bottom.")


class PresetFile(Strict):
    """A rule pack for one kind of backend."""

    preset: Name = Field(description="Its name, as that of the file.")
    about: Text = Field(description="Which backend it is for.")
    rules: list[Rule] = Field(description="Its rules; their full ids are preset/id.")
