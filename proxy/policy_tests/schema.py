"""The case file's types, strict: requests, what the backend answers, what is expected of the policy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from proxy.fields import parse_path
from proxy.matching import KEY, BadTest, kind_of
from proxy.policy.schema import Name, Status, StreamEnd, Strict, Text


def _json(value: Any) -> Any:
    _refuse_other_keys(value, ())
    return value


def _refuse_other_keys(value: Any, place: tuple[Any, ...]) -> None:
    """Raise BadTest where a key is none that JSON could hold."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_other_keys(item, (*place, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise BadTest.at(f"a key of JSON is a string, not {kind_of(key)}: put it in quotes", *place, key, KEY)
            _refuse_other_keys(item, (*place, key))


def _path(text: str) -> str:
    parse_path(text)
    return text


def _not_empty(raw: Any) -> Any:
    if raw == []:
        raise BadTest.at("an empty list says nothing: leave the key out")
    return raw


Json = Annotated[Any, AfterValidator(_json)]
FieldPath = Annotated[str, AfterValidator(_path)]
Chunk = Annotated[dict[str, Json], AfterValidator(_json)]


class RequestCase(Strict):
    """What the client sends."""

    method: Text = "POST"
    path: Annotated[str, Field(pattern="^/")] = "/v1/chat/completions"
    query: str | dict[str, str | list[str]] = Field({}, description="As in a URL, or names and their values.")
    headers: dict[str, str] = Field({}, description="By name.")
    body: Json = Field(None, description="JSON.")
    text: str | None = Field(None, description="In place of `body`: its bytes as they are, for what is no JSON.")

    @model_validator(mode="after")
    def _has_one_body(self) -> RequestCase:
        if {"body", "text"} <= self.model_fields_set:
            raise BadTest.at("a request has a `body` or a `text`, not both", "text", KEY)
        return self


class MetAnswer(Strict):
    """What the backend answers in one round, before the proxy asks again: a refusal, a stream without content, less."""

    status: Status | None = Field(None, description="The status of a refusal.")
    stream: StreamEnd | None = Field(None, description="How a 200 event stream failed: empty, error, silent.")
    choices: Literal["fewer"] | None = Field(None, description="It answered with fewer choices than were asked for.")
    got: Annotated[int, Field(ge=1)] = Field(1, description="How many choices it answered with.")
    body: Json = Field(None, description="The refusal's JSON; of `stream: error` the first event's.")
    text: str | None = Field(None, description="In place of `body`: a refusal in plain words.")

    @model_validator(mode="after")
    def _is_one_kind(self) -> MetAnswer:
        if sum(kind is not None for kind in (self.status, self.stream, self.choices)) != 1:
            raise BadTest.at(
                "an answer has a `status`, or a `stream` that failed, or `choices: fewer`: name one of them"
            )
        if self.choices is None and "got" in self.model_fields_set:
            raise BadTest.at("`got` says how many choices came: it goes with `choices: fewer`", "got", KEY)
        self._check_words({"body", "text"} & self.model_fields_set)
        return self

    def _check_words(self, words: set[str]) -> None:
        """Raise BadTest where the answer says what its kind can't, or nothing where it has to."""
        if len(words) > 1:
            raise BadTest.at("an answer has a `body` or a `text`, not both", "text", KEY)
        if words and (self.choices is not None or self.stream in ("empty", "silent")):
            raise BadTest.at(f"only a refusal and `stream: error` have a `{min(words)}`", min(words), KEY)
        if self.stream == "error" and not words:
            raise BadTest.at("of `stream: error` the first event has to be given, as `body` or `text`")


class ExpectedRefusal(Strict):
    """What the proxy itself answers; of the message a part, in any case."""

    status: int | None = None
    code: str | None = None
    param: str | None = None
    message: Text | None = None


class ExpectedAnswer(Strict):
    """What the client gets."""

    stream: bool | None = Field(None, description="Whether it is an event stream.")
    choices: Annotated[int, Field(ge=1)] | None = Field(None, description="How many choices were asked for in all.")
    relayed: bool | None = Field(None, description="Whether the backend's bytes go on as they come.")
    body: Json = Field(None, description="What `answered` has become: a part of the object, or of each chunk.")
    absent: list[FieldPath] = Field([], description="Fields that `answered` must have lost.")


class Expect(Strict):
    """What the policy has to make of the request. What is not named is not asked."""

    rules: list[str] | None = Field(None, description="Full ids of all rules that fired, in order.")
    observed: list[str] | None = Field(None, description="Those of `mode: observe` that would have fired.")
    branches: Annotated[int, Field(ge=0)] | None = Field(None, description="Upstream requests.")
    backend: str | None = Field(None, description="The name of the backend that is asked.")
    untouched: bool | None = Field(None, description="Whether the client's bytes go on as they came.")
    body: Json = Field(None, description="A part of every branch's body.")
    bodies: list[Json] | None = Field(None, description="A part of each branch's body, branch by branch.")
    absent: list[FieldPath] = Field([], description="Fields that no branch may have.")
    refused: bool | ExpectedRefusal | None = Field(None, description="Whether, or how, the proxy itself refuses.")
    retried: bool | None = Field(None, description="Whether a rule knew the last answer of `after`.")
    loses: dict[str, str] = Field({}, description="By rule what the client is told it loses, or nothing.")
    warns: dict[str, str] = Field({}, description="By rule what the client is warned of.")
    answer: ExpectedAnswer | None = Field(None, description="What the client gets.")

    @model_validator(mode="after")
    def _asks_something(self) -> Expect:
        if not self.model_fields_set:
            raise BadTest.at("nothing is expected: a case that can't fail is none")
        besides = sorted(self.model_fields_set & {"absent", "answer", "bodies", "body", "untouched"})
        if self.refused and besides:
            raise BadTest.at(f"what is refused doesn't go upstream: it has no {besides[0]}", besides[0], KEY)
        return self


class TestCase(Strict):
    """One case: a request, what the backend says to it if anything, and what is expected."""

    __test__ = False  # it is none of pytest's

    name: Text | None = Field(None, description="Says what holds; no two of a file are the same.")
    row: Text | None = Field(None, description="The row of the catalogue that the case is for.")
    request: RequestCase | None = None
    after: Annotated[MetAnswer | list[MetAnswer], AfterValidator(_not_empty)] | None = Field(
        None, description="What the backend answered before, round by round; `expect` is about the request after it."
    )
    answered: Chunk | list[Chunk] | None = Field(
        None, description="What the backend answers in the end, a JSON object or a list of chunks."
    )
    expect: Expect | None = None
    impossible: Text | None = Field(None, description="In place of all but `row`: why no repair can help.")

    @model_validator(mode="after")
    def _is_whole(self) -> TestCase:
        if self.impossible is not None:
            self._refuse_besides_impossible()
            return self
        missing = [key for key in ("name", "request", "expect") if getattr(self, key) is None]
        if missing:
            raise BadTest([((KEY,), f'"{key}" is missing') for key in missing])
        self._check_halves()
        return self

    def _refuse_besides_impossible(self) -> None:
        if self.row is None:
            raise BadTest.at('"row" is missing: what is it that is impossible?', KEY)
        besides = sorted(self.model_fields_set - {"row", "impossible"})
        if besides:
            raise BadTest.at(f"an impossible row has no {besides[0]}", besides[0], KEY)

    def _check_halves(self) -> None:
        """Raise BadTest where something is expected of an answer that is not given."""
        expect = self.expect or Expect(rules=[])
        answer = expect.answer
        if self.after is None and expect.retried is not None:
            raise BadTest.at("`retried` is about the answers of `after`, and there are none", "expect", "retried", KEY)
        wants = answer is not None and {"body", "absent"} & answer.model_fields_set
        if self.answered is None and wants:
            raise BadTest.at("what the client reads is made of `answered`, which is not given", "expect", "answer")
        if self.answered is not None and not wants:
            raise BadTest.at("nothing is expected of it: say so in expect.answer.body or .absent", "answered", KEY)


class TestFile(Strict):
    """Cases for one policy."""

    __test__ = False

    policy: Text | None = Field(None, description="The policy's file, seen from this one.")
    preset: Name | None = Field(None, description="In place of `policy`: one backend with this preset and no rules.")
    about: Text | None = Field(None, description="What the cases are about.")
    env: dict[str, str] = Field({}, description="Variables for the policy, before the process's own.")
    tests: list[TestCase] = Field(description="The cases.")

    @model_validator(mode="after")
    def _has_one_policy(self) -> TestFile:
        if (self.policy is None) == (self.preset is None):
            raise BadTest.at("the cases are for a `policy` (its file) or a `preset` (its name): name one of them", KEY)
        return self
