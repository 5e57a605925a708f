"""What a case expects, held against what came: a list of complaints, empty where all holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from proxy.engine import Applied
from proxy.errors import ProxyError
from proxy.matching import flow
from proxy.matching.values import is_integer
from proxy.policy_tests.cases import Case
from proxy.policy_tests.compare import difference, is_part, still_there
from proxy.policy_tests.schema import Expect, ExpectedAnswer, ExpectedRefusal
from proxy.policy_tests.trial import Outcome

NOTHING: Final = "nothing"


def complaints(case: Case, outcome: Outcome) -> list[str]:
    """Return what differs from what the case expects, each as text of one or more lines."""
    return [complaint for check in _CHECKS for complaint in check(case.expect, outcome)] + list(_met(case, outcome))


def _rules(expect: Expect, outcome: Outcome) -> Iterator[str]:
    fired = [applied.rule for applied in outcome.applied]
    if expect.rules is not None and expect.rules != fired:
        missing = [rule for rule in expect.rules if rule not in fired and rule in outcome.misses]
        reasons = [f"{rule}: {outcome.misses[rule]}" for rule in missing]
        yield "\n  ".join([f"rules: expected {flow(expect.rules)}, came {flow(fired)}", *reasons])
    observed = [applied.rule for applied in outcome.observed]
    if expect.observed is not None and expect.observed != observed:
        yield f"observed: expected {flow(expect.observed)}, came {flow(observed)}"


def _refused(expect: Expect, outcome: Outcome) -> Iterator[str]:
    refusal, expected = outcome.refusal, expect.refused
    if isinstance(expected, ExpectedRefusal):
        yield from _refusal(expected, refusal)
    elif expected is not None and expected is not (refusal is not None):
        yield f"refused: expected {flow(expected)}, came {_told(refusal)}"
    elif expected is None and refusal is not None and _asks_of_branches(expect):
        yield f"refused: nothing goes upstream, the proxy answers {_told(refusal)}"


def _asks_of_branches(expect: Expect) -> bool:
    return bool({"body", "bodies", "absent", "untouched", "answer"} & expect.model_fields_set)


def _refusal(expected: ExpectedRefusal, came: ProxyError | None) -> Iterator[str]:
    if came is None:
        yield "refused: expected, but the request goes upstream"
        return
    for name in sorted(expected.model_fields_set - {"message"}):
        if getattr(expected, name) != getattr(came, name):
            yield f"refused.{name}: expected {flow(getattr(expected, name))}, came {flow(getattr(came, name))}"
    if expected.message is not None and expected.message.lower() not in came.message.lower():
        yield f"refused.message: expected {flow(expected.message)} in it, came {flow(came.message)}"


def _told(refusal: ProxyError | None) -> str:
    return "false" if refusal is None else f"{refusal.status} {flow(refusal.message)}"


def _upstream(expect: Expect, outcome: Outcome) -> Iterator[str]:
    if expect.branches is not None and expect.branches != len(outcome.bodies):
        yield f"branches: expected {expect.branches}, came {len(outcome.bodies)}"
    backend = outcome.plan.backend.name if outcome.plan is not None else None
    if expect.backend is not None and expect.backend != backend:
        yield f"backend: expected {expect.backend}, came {backend or 'none'}"
    if expect.untouched is not None and outcome.refusal is None and expect.untouched is not outcome.is_untouched:
        yield f"untouched: expected {flow(expect.untouched)}, came {flow(outcome.is_untouched)}"


def _bodies(expect: Expect, outcome: Outcome) -> Iterator[str]:
    if "body" in expect.model_fields_set:
        for index, body in enumerate(outcome.bodies):
            yield from _part(f"the body of branch {index}", expect.body, body)
    if expect.bodies is not None and outcome.refusal is None:
        if len(expect.bodies) != len(outcome.bodies):
            yield f"bodies: expected {len(expect.bodies)} branches, came {len(outcome.bodies)}"
        for index, (expected, body) in enumerate(zip(expect.bodies, outcome.bodies, strict=False)):
            yield from _part(f"the body of branch {index}", expected, body)
    for index, body in enumerate(outcome.bodies):
        yield from _absent(f"the body of branch {index}", expect.absent, body)


def _part(what: str, expected: Any, came: Any) -> Iterator[str]:
    if not is_part(expected, came):
        yield "\n  ".join([f"{what}:", *difference(expected, came)])


def _absent(what: str, paths: Iterable[str], value: Any) -> Iterator[str]:
    for path in paths:
        if places := still_there(path, value):
            yield f"{what}: expected no {path}, but there is {', '.join(places)}"


def _words(expect: Expect, outcome: Outcome) -> Iterator[str]:
    yield from _by_rule("loses", expect.loses, outcome.applied, lambda applied: applied.loses or NOTHING)
    yield from _by_rule("warns", expect.warns, outcome.applied, lambda applied: applied.warning or NOTHING)


def _by_rule(
    key: str, expected: Mapping[str, str], applied: Sequence[Applied], told: Callable[[Applied], str]
) -> Iterator[str]:
    came = {each.rule: told(each) for each in applied}
    for rule, words in expected.items():
        if rule not in came:
            yield f"{key}: the rule {rule} did not fire"
        elif came[rule] != words:
            yield f"{key}.{rule}: expected {flow(words)}, came {flow(came[rule])}"


def _answer(expect: Expect, outcome: Outcome) -> Iterator[str]:
    if expect.answer is None or outcome.plan is None or outcome.refusal is not None:
        return
    for name, came in _shape(outcome).items():
        expected = getattr(expect.answer, name)
        if expected is not None and expected != came:
            yield f"answer.{name}: expected {flow(expected)}, came {flow(came)}"
    yield from _client(expect.answer, outcome.client)


def _shape(outcome: Outcome) -> Mapping[str, Any]:
    """Return the shape of what the client gets; of an untouched request it is what the client asked for."""
    body = outcome.bodies[0] if outcome.bodies and isinstance(outcome.bodies[0], dict) else {}
    restoring = outcome.plan.restore if outcome.plan is not None else None
    n: Any = body.get("n")
    asked = int(n) if is_integer(n) and n > 0 else 1
    return {
        "stream": restoring.stream if restoring is not None else body.get("stream") is True,
        "choices": asked if restoring is None or restoring.total is None else restoring.total,
        "relayed": restoring is None,
    }


def _client(expected: ExpectedAnswer, came: Any) -> Iterator[str]:
    if "body" in expected.model_fields_set:
        yield from _part("the client's answer", expected.body, came)
    for value in came if isinstance(came, list) else [came]:
        yield from _absent("the client's answer", expected.absent, value)


def _met(case: Case, outcome: Outcome) -> Iterator[str]:
    """Yield what is wrong with how far the answers of `after` led."""
    if not case.after or outcome.refusal is not None:
        if outcome.unmet:
            yield "after: the proxy refuses the request itself, so the backend never answers"
        return
    number = len(case.after) - outcome.unmet + 1
    if case.expect.retried is False:
        if outcome.unmet != 1:
            came = "a rule knew it" if not outcome.unmet else f"no rule knew answer {number} already"
            yield f"retried: expected that no rule knows the last answer, but {came}"
    elif outcome.unmet:
        which = f"answer {number} of `after`" if len(case.after) > 1 else "the answer of `after`"
        yield f"after: no rule knows {which}, so it goes to the client (`retried: false`, where that is meant)"


_CHECKS: Final = (_rules, _refused, _upstream, _bodies, _words, _answer)
