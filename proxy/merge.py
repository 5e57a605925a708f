"""The chunks of n branches → the chunks of one stream.

    branch b's choice i → the client's choice(s) `spreads[b].indexes(i)`

    a choice:  unseen ── introduction (role) ──► open ── finish_reason ──► finished ──► (further fields still pass)
    a stream:  introductions, chunks as they come, `end` of each branch, usage

All chunks bear one identity, that of the branch which spoke first. What a choice holds passes as it is, but for its
index, repeated roles, ids and names, and a second finish_reason. The caller writes the events and the sentinel.

Source: design §7; openai-python 3.57 `ChatCompletionStreamState` uses a choice's index as an offset into a list and
joins repeated strings, hence the order of the introductions and the names told once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from proxy.answers import ToolSlots, with_text_arguments
from proxy.chunks import (
    FAILED_FINISHES,
    IDENTITY,
    INCOMPLETE,
    INVALID,
    OBJECTS,
    Kind,
    failure_of,
    identity_of,
    incomplete,
    indexed_choices,
    is_blank,
)
from proxy.errors import BackendFault
from proxy.spread import Choices, Spread, usage_of
from proxy.usage import UsageMode

__all__ = ["Merger", "Spread"]

# A choice with a greater index can only be a fault: each one before it would have to be introduced.
MAX_CHOICES: Final = 1024
_ENVELOPE: Final = frozenset({*IDENTITY, "choices", "usage"})


class Merger:
    """Merges the branches of one request. `total`: how many choices the client will get, where that is known."""

    def __init__(
        self,
        *,
        spreads: Sequence[Spread],
        total: int | None,
        kind: Kind,
        include_usage: bool,
        usage: UsageMode,
        fallback_id: str,
        created: int,
        model: str,
    ) -> None:
        self._spreads = spreads
        self._total = total
        self._kind = kind
        self._include_usage = include_usage
        self._usage_mode = usage
        self._fallback = {"id": fallback_id, "object": OBJECTS[kind], "created": created, "model": model}
        self._identity: dict[str, Any] = {}
        self._early: list[tuple[int, Mapping[str, Any]]] = []  # what came before there was an identity
        self._choices: list[dict[int, _Choice]] = [{} for _ in spreads]
        self._first: dict[int, int] = {}  # with which index a branch began
        self._introduced: set[int] = set()
        self._finished: set[int] = set()
        self._usages: list[dict[str, Any] | None] = [None] * len(spreads)
        self._held: dict[str, Any] = {}  # what came beside a usage
        self._told: dict[str, Any] = {}  # further fields of the chunks sent so far
        self._running = len(spreads)

    def feed(self, branch: int, chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the chunks to send for a branch's chunk.

        Raises: BackendFault, where the chunk tells of a failure or is none; `answer_aborted`, where a choice is.
        """
        fault = failure_of(chunk)
        if fault:
            raise fault
        if not self._identity:
            # Pings with data, and Azure's first chunk, come before the chunk that says whose answer it is.
            if not (chunk.get("id") or indexed_choices(chunk)):
                self._early.append((branch, chunk))
                return []
            self._identity = self._identity_of(chunk)
        if not self._early:
            return self._feed(branch, chunk)
        early, self._early = self._early, []
        return [new for source, one in [*early, (branch, chunk)] for new in self._feed(source, one)]

    def _feed(self, branch: int, chunk: Mapping[str, Any]) -> list[dict[str, Any]]:
        choices = self._asked_for(branch, indexed_choices(chunk))
        usage = chunk.get("usage")
        if usage and isinstance(usage, dict):
            self._usages[branch] = usage
        rest = further_fields(chunk)
        introductions = list(self._introductions(branch, choices)) if self._kind == "chat" else []
        if not choices:
            return introductions + self._aside(usage, rest)
        news = self._news(branch, choices)
        carrier = news or introductions[-1:]
        if not carrier and self._is_new(rest):
            news = carrier = [self._chunk([])]
        if rest and carrier:
            carrier[0] |= rest
            self._told |= rest
        return introductions + news

    def end(self, branch: int) -> list[dict[str, Any]]:
        """Return the chunks to send when a branch has ended; the last one brings the usage.

        Raises: BackendFault `answer_incomplete`, where a choice has not ended.
        """
        choices = self._choices[branch]
        if not choices:
            raise incomplete("no choice came")
        for index, choice in sorted(choices.items()):
            if not choice.is_finished:
                raise incomplete(f"choice {self._spreads[branch].indexes(index)[0]} has no finish_reason")
        self._running -= 1
        if self._running:
            return []
        missing = self._introduced - self._finished
        if missing:
            raise incomplete(f"choice {min(missing)} never came")
        usage = usage_of(self._usages, self._spreads, self._usage_mode) if self._include_usage else None
        return [] if usage is None else [self._chunk([]) | {"usage": usage} | self._held]

    def count(self, branch: int) -> int:
        """Return how many choices of its own a branch has shown so far."""
        return len(self._choices[branch])

    def add(self, spreads: Sequence[Spread]) -> None:
        """Take in further branches, numbered on from those there are."""
        self._spreads = [*self._spreads, *spreads]
        self._choices += [{} for _ in spreads]
        self._usages += [None] * len(spreads)
        self._running += len(spreads)

    def retell(self, rest: Mapping[str, Any]) -> None:
        """Note that a chunk was sent which nobody fed: one like another before it, with the same further fields."""
        self._told |= rest

    def _identity_of(self, chunk: Mapping[str, Any]) -> dict[str, Any]:
        told = identity_of(chunk) | {"object": OBJECTS[self._kind]}
        if "system_fingerprint" in chunk:
            told["system_fingerprint"] = chunk["system_fingerprint"]
        return self._fallback | told

    def _asked_for(self, branch: int, choices: Choices) -> Choices:
        if choices:
            self._first.setdefault(branch, choices[0][0])
        return self._spreads[branch].asked_for(choices, self._first.get(branch, 0))

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._identity, "choices": choices}

    def _introductions(self, branch: int, choices: Sequence[tuple[int, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        """Yield a role chunk for each choice that the client will see and has not seen."""
        if self._total and not self._introduced:
            template = choices[0][1] if choices else {}
            for index in range(self._total):
                yield self._introduce(index, template)
        for own, choice in choices:
            for index in self._spreads[branch].indexes(own):
                if index in self._introduced:
                    continue
                if index >= MAX_CHOICES:
                    raise BackendFault(f"The backend's answer has a choice {index}.", code=INVALID)
                # A client's list of choices can't grow by more than one.
                for missing in range(index) if self._total is None else ():
                    if missing not in self._introduced:
                        yield self._introduce(missing, choice)
                yield self._introduce(index, choice)

    def _introduce(self, index: int, template: Mapping[str, Any]) -> dict[str, Any]:
        self._introduced.add(index)
        return self._chunk([_introduction(index, template)])

    def _news(self, branch: int, choices: Sequence[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return what the choices say that the client does not know; copies go on chunks of their own."""
        spread, states = self._spreads[branch], self._choices[branch]
        copies: list[list[dict[str, Any]]] = [[] for _ in range(spread.copies)]
        for own, choice in choices:
            if own not in states:
                states[own] = _Choice(self._kind)
            news = states[own].news(choice)
            if news is None:
                continue
            for copy, index in zip(copies, spread.indexes(own), strict=True):
                copy.append({**news, "index": index})
                if news["finish_reason"]:
                    self._finished.add(index)
        return [self._chunk(copy) for copy in copies if copy]

    def _is_new(self, rest: Mapping[str, Any]) -> bool:
        return any(value is not None and self._told.get(key) != value for key, value in rest.items())

    def _aside(self, usage: Any, rest: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what to send for a chunk without choices."""
        if usage is None or (not self._include_usage and self._is_new(rest)):
            self._told |= rest
            return [self._chunk([]) | rest]
        self._held |= {key: value for key, value in rest.items() if value is not None or key not in self._held}
        return []


def further_fields(chunk: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a chunk holds beside its identity, its choices and its usage; a usage that is null counts."""
    rest = {} if chunk.keys() <= _ENVELOPE else {key: chunk[key] for key in chunk if key not in _ENVELOPE}
    if "usage" in chunk and chunk["usage"] is None:
        rest["usage"] = None
    return rest


class _Choice:
    """One choice of one branch, while its chunks pass."""

    def __init__(self, kind: Kind) -> None:
        self.is_finished = False
        self._end: Mapping[str, Any] = {}  # what it ended with
        self._body = "delta" if kind == "chat" else "text"
        self._slots = ToolSlots()
        self._told: dict[int | str, set[str]] = {}  # what each call has told of itself

    def news(self, choice: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the choice without what the client knows already; None where nothing is left.

        Raises: BackendFault `answer_aborted`.
        """
        finish = None if self.is_finished else choice.get("finish_reason") or None
        if finish in FAILED_FINISHES:
            raise BackendFault(
                f"The backend broke off its answer: it ended with finish_reason {finish}.",
                code="answer_aborted",
                token=INCOMPLETE,
            )
        body: Any = choice.get(self._body) or ""
        if self._body == "delta":
            body = self._delta(body) if isinstance(body, dict) else {}
        if not (finish or _says_something(body) or self._has_more(choice)):
            return None
        if finish:
            self.is_finished, self._end = True, choice
        return {**choice, self._body: body, "finish_reason": finish}

    def _has_more(self, choice: Mapping[str, Any]) -> bool:
        """Return whether there are further fields; one that the choice ended with already is none (but lists grow)."""
        return any(
            value is not None
            and key not in ("index", "finish_reason", self._body)
            and (isinstance(value, (list, dict)) or self._end.get(key) != value)
            for key, value in choice.items()
        )

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        if "role" in delta:
            delta = {key: value for key, value in delta.items() if key != "role"}
        calls = delta.get("tool_calls")
        if calls and isinstance(calls, list):
            delta = delta | {"tool_calls": list(self._calls(calls))}
        function = delta.get("function_call")
        if function and isinstance(function, dict):
            delta = delta | {"function_call": once(function, self._told.setdefault("function_call", set()))}
        return delta

    def _calls(self, calls: list[Any]) -> Iterator[dict[str, Any]]:
        for position, call in enumerate(calls):
            if not isinstance(call, dict):
                raise BackendFault("The backend's answer has a tool call that is no object.", code=INVALID)
            slot = self._slots.find(call, position, len(calls))
            yield once(call, self._told.setdefault(slot, set())) | {"index": slot}


def _says_something(body: Any) -> bool:
    if isinstance(body, dict):
        return any(not is_blank(value) for value in body.values())
    return bool(body)


def once(call: dict[str, Any], told: set[str]) -> dict[str, Any]:
    """Return a call's fragment without the id, type and name that an earlier one told, or that are empty."""
    news: dict[str, Any] = {}
    for key, value in with_text_arguments(call).items():
        if key in ("id", "type", "name"):
            if value and key not in told:
                told.add(key)
                news[key] = value
        elif key in ("function", "custom") and isinstance(value, dict):
            news[key] = once(value, told)
        elif not (key == "arguments" and value is None):
            news[key] = value
    return news


def _introduction(index: int, template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a choice's first appearance, in the shape of the backend's own where that holds nothing but the role."""
    delta = template.get("delta")
    if isinstance(delta, dict) and _holds_only_a_role(template, delta):
        delta = {**delta, "role": "assistant"}
        return {**template, "index": index, "delta": delta, "finish_reason": None}
    logprobs = {"logprobs": None} if "logprobs" in template else {}
    return {"index": index, "delta": {"role": "assistant", "content": ""}, **logprobs, "finish_reason": None}


def _holds_only_a_role(choice: Mapping[str, Any], delta: Mapping[str, Any]) -> bool:
    return all(key == "role" or is_blank(value) for key, value in delta.items()) and all(
        key in ("index", "delta") or is_blank(value) for key, value in choice.items()
    )
