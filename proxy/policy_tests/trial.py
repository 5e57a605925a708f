"""One case, run: the request is planned, each answer of `after` met, and what the client would get made of the last.

The engine says for each rule whether it fired or was passed over, which is what the coverage is counted from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import structs

from proxy.engine import Applied, Plan, Step, plan, replan, top_up
from proxy.errors import ProxyError
from proxy.fields import ABSENT
from proxy.policy import Policy, Rule
from proxy.policy.index import RuleIndex
from proxy.policy_tests.cases import Case
from proxy.policy_tests.met import Fewer
from proxy.refusals import Failure


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case. `plan` is the last one; None where no backend has the model.

    `unmet` counts the answers of `after` that the backend never came to give, or that no rule knew; `misses` says of
    each rule that didn't fire why; `client` is what `answered` has become.
    """

    plan: Plan | None
    refusal: ProxyError | None
    applied: tuple[Applied, ...]
    observed: tuple[Applied, ...]
    bodies: tuple[Any, ...]
    unmet: int
    client: Any
    misses: Mapping[str, str]
    fired: frozenset[str]
    passed: frozenset[str]

    @property
    def is_untouched(self) -> bool:
        """Whether the client's own bytes go on."""
        return self.plan is not None and self.refusal is None and self.plan.is_untouched


def run(case: Case, policy: Policy) -> Outcome:
    """Return what the policy makes of a case's request."""
    trace: list[Step] = []
    try:
        made = plan(case.request, policy, trace)
    except ProxyError as error:
        return _nowhere(error, len(case.after))
    rounds = _met(case, _Rounds(made, _passed(trace, made)), policy)
    made = rounds.plan
    return Outcome(
        plan=made,
        refusal=made.refusal,
        applied=made.applied,
        observed=(*made.observed, *rounds.observed),
        bodies=() if made.refusal else tuple(map(_readable, map(bytes, made.bodies or (case.request.body or b"",)))),
        unmet=rounds.unmet,
        client=_as_the_client_gets_it(case.answered, made),
        misses=dict(_misses(trace)),
        fired=frozenset(each.rule for each in (*made.applied, *made.observed, *rounds.observed)),
        passed=rounds.passed,
    )


def _nowhere(error: ProxyError, unmet: int) -> Outcome:
    return Outcome(None, error, (), (), (), unmet, None, {}, frozenset(), frozenset())


def _passed(trace: list[Step], made: Plan) -> frozenset[str]:
    """Return the rules that met the request and let it be; a reactive one had no answer to judge yet."""
    rejecting = made.applied[-1].rule if made.draft.rejection is not None else None
    passed: set[str] = set()
    for step in trace:
        if step.rule.id == rejecting:
            break  # those after it never met the request
        if step.applied is None and step.rule.on_error is None:
            passed.add(step.rule.id)
    return frozenset(passed)


@dataclass(frozen=True, slots=True)
class _Rounds:
    """How far a case came: the plan after the last answer that a rule knew, and which rules let an answer be."""

    plan: Plan
    passed: frozenset[str]
    observed: tuple[Applied, ...] = ()
    unmet: int = 0


def _met(case: Case, rounds: _Rounds, policy: Policy) -> _Rounds:
    for index, answer in enumerate(case.after):
        made = rounds.plan
        if made.refusal is not None:
            return replace(rounds, unmet=len(case.after) - index)
        observed = tuple(_observing(made, answer, policy))
        after = _next_round(made, answer, policy)
        known = (after.tried if after is not None else made.tried) | {each.rule for each in observed}
        rounds = replace(rounds, passed=rounds.passed | ({rule.id for rule in _reactive(made)} - known))
        if after is None:
            return replace(rounds, observed=observed, unmet=len(case.after) - index)
        rounds = replace(rounds, plan=after)
    return rounds


def _reactive(made: Plan) -> list[Rule]:
    return [rule for rule in made.backend.rules if rule.on_error is not None and rule.id not in made.tried]


def _next_round(made: Plan, answer: Failure | Fewer, policy: Policy) -> Plan | None:
    if isinstance(answer, Failure):
        return replan(made, answer, policy)
    # Less than was asked for is only seen where an answer is counted.
    is_less = made.restore is not None and answer.got < made.restore.asked
    return top_up(made, answer.got) if is_less else None


def _observing(made: Plan, answer: Failure | Fewer, policy: Policy) -> Iterator[Applied]:
    """Yield what the rules that only observe would have done; where no other reacts the engine makes no plan of it."""
    for rule in _reactive(made):
        if rule.mode == "observe":
            alone = structs.replace(made, backend=replace(made.backend, index=RuleIndex([replace(rule, mode="apply")])))
            after = _next_round(alone, answer, policy)
            if after is not None:
                yield after.applied[-1]


def _as_the_client_gets_it(answered: Any, made: Plan) -> Any:
    if answered is None or made.refusal is not None:
        return None
    undos = [make() for make in made.restore.undos] if made.restore is not None else []
    if isinstance(answered, dict):
        for undo in undos:
            answered = undo.answer(answered)
        return answered
    chunks: list[Any] = []
    for chunk in answered:
        for undo in undos:
            chunk = undo.chunk(chunk)
        chunks.append(chunk)
        if any(undo.is_done for undo in undos):
            break
    return chunks


def _misses(trace: list[Step]) -> Iterator[tuple[str, str]]:
    for step in trace:
        if step.miss is not None:
            label, value = step.miss
            yield step.rule.id, f"{label} met {'absent' if value is ABSENT else _short(value)}"
        elif step.note:
            yield step.rule.id, step.note


def _short(value: Any) -> str:
    text = msgspec.json.encode(value, enc_hook=repr).decode()
    return text if len(text) <= 80 else f"{text[:79]}…"


def _readable(body: bytes) -> Any:
    """Return a body's JSON, ABSENT where it is none."""
    try:
        return msgspec.json.decode(body) if body else ABSENT
    except (msgspec.DecodeError, RecursionError):
        return ABSENT
