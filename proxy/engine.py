"""What is to be done for one request: the policy's rules run over it, top to bottom, and the plan that comes of it.

    request ── plan ──► Plan: the backend, the bodies of its branches, how the answers are restored, what is told
    Plan + Failure ── replan ──► another Plan, or None when no rule knows the refusal

Pure: the same request, policy and learned rules give the same plan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from msgspec import structs

from proxy.body import Body, UnreadableBody
from proxy.branches import wants_usage, with_branches, with_fresh_id
from proxy.errors import ClientFault, ProxyError
from proxy.frames import Framed, Outcome, model_of
from proxy.headers import Headers, are_usual, is_strict
from proxy.matching import Facts, Late, compile_globs
from proxy.matching.values import is_integer
from proxy.plans import Applied, Kind, Plan, Reaction, Request, Restore, Step, kind_of
from proxy.policy import Backend, Policy, Rule
from proxy.policy.index import Positions, RuleIndex, Selection
from proxy.reactions import Knowing, knowings_of
from proxy.refusals import Failure
from proxy.repairs.card import Act, Draft, Rejection
from proxy.repairs.fan_out import branch_bodies
from proxy.spread import Spread

__all__ = [
    "Applied",
    "Kind",
    "Plan",
    "Reaction",
    "Request",
    "Restore",
    "Step",
    "inspected_paths",
    "kind_of",
    "observed",
    "plan",
    "replan",
    "top_up",
    "wants_usage",
]

Learned = Callable[[str], tuple[tuple[Rule, ...], frozenset[str]]]
"""A backend's name → the rules learned from its refusals, and the ids of those to leave out this time."""

EMPTY = Body.of({})
_NO_IDS: Final[frozenset[str]] = frozenset()


def _nothing_learned(_backend: str) -> tuple[tuple[Rule, ...], frozenset[str]]:
    return (), _NO_IDS


class _Run(msgspec.Struct):
    facts: Facts
    draft: Draft
    applied: list[Applied] = []
    observed: list[Applied] = []
    rejected_by: str = ""


def inspected_paths(policy: Policy) -> Callable[[str], bool]:
    """Return whether the body of a request for a path has to be read: a rule may look into it, or its model routes."""
    if len(policy.backends) > 1:
        return lambda _path: True
    globs = {glob for backend in policy.backends for rule in backend.rules for glob in rule.matcher.paths}
    return compile_globs(sorted(globs))[1] if globs else lambda _path: False


def plan(
    request: Request,
    policy: Policy,
    trace: list[Step] | None = None,
    learned: Learned = _nothing_learned,
) -> Plan:
    """Return the plan for a request; `trace`, when given, gets a Step for each rule, the learned ones last.

    Raises: ClientFault 404 where no backend has the model.
    """
    body = policy.frames.parse(request.body) if request.body else None
    model = body.frame.model if type(body) is Framed else model_of(body) if body is not None else None
    try:
        return _plan(request, policy, model, body, trace, learned)
    except UnreadableBody:
        # A value that a rule looked into is no JSON: then the body matches nothing and goes on as it came.
        if trace is not None:
            trace.clear()
        return _plan(request, policy, model, None, trace, learned)


def _plan(
    request: Request,
    policy: Policy,
    model: str | None,
    body: Body | None,
    trace: list[Step] | None,
    learned: Learned,
) -> Plan:
    backend = policy.backend_for(model)
    if backend is None:
        raise _unknown(model)
    query: Late[tuple[str, ...]] | Mapping[str, tuple[str, ...]] = (
        Late(_parameters, request.query) if request.query else {}
    )
    late = Late(_joined, request.headers)
    facts = Facts(request.method, request.path, query, late, model, backend.name, body)
    draft = Draft(body if body is not None else EMPTY, request.path, policy.limits.branches)
    more, left_out = learned(backend.name)
    strict = not are_usual(request.headers) and is_strict(request.headers)
    index, seen = backend.index, dict[int, int]()
    selection = index.selection(facts)
    positions = index.possible(body, selection, seen) if trace is None else ()
    if not (positions or more or selection.counting or trace is not None):
        # Nothing is to be done for most requests, and nothing further to be made for these.
        may_react = selection.surely_reacts or _may_react(selection, facts, _NO_IDS)
        return Plan(backend, facts, draft, is_strict=strict, may_react=may_react)
    run = _Run(facts, draft)
    skipped = (
        frozenset([rule.id for rule in more if rule.id in left_out and _holds(rule, facts)]) if left_out else _NO_IDS
    )
    if trace is not None:
        trace += (_passed_over(rule, run) or _fire(rule, run) for rule in backend.rules)
        trace += (_passed_over(rule, run) or _fire(rule, run) for rule in more if rule.id not in skipped)
    else:
        _run_known(index, selection, positions, seen, run)
        for rule in more:
            if rule.id not in skipped and _is_due(rule, run):
                _fire(rule, run)
    return _finish(run, backend, selection, strict=strict, skipped=skipped)


def _run_known(index: RuleIndex, selection: Selection, positions: Positions, seen: dict[int, int], run: _Run) -> None:
    """Run the rules that can do something, or do what they did to such a body before, where they tell by its frame."""
    body = run.facts.body
    if type(body) is not Framed:
        _run_possible(index, selection, positions, seen, run)
        return
    inside = seen.get(id(body.turns), 0)
    known = body.frame.outcome(selection, inside)
    if known is not None:
        run.applied += known.applied
        new = body.framed(known.frame)
        run.draft = Draft(new, run.draft.path, run.draft.max_branches, known.answer)
        run.facts = run.facts.with_body(new)
    elif _run_possible(index, selection, positions, seen, run):
        draft = run.draft
        if type(draft.body) is Framed and draft.body is not body:
            body.frame.keep(Outcome(selection, draft.body.frame, tuple(run.applied), draft.answer), inside)


def _run_possible(
    index: RuleIndex, selection: Selection, positions: Positions, seen: dict[int, int], run: _Run
) -> bool:
    """Run the rules that can do something: as if all were run, which is what a trace does.

    Return whether they looked at nothing but the body's frame, beside what the index is told by.
    """
    following, is_of_frame = 0, True
    while following < len(positions) and run.draft.rejection is None:
        at, facts = positions[following], run.facts
        following += 1
        is_of_frame = is_of_frame and index.is_of_frame(at, positions)
        if index.holds(at, facts, positions):
            _fire(index.rules[at], run)
        if run.facts is not facts and at < selection.last:
            # The edit may have made other rules possible, and ruled some out.
            positions = index.possible(run.facts.body, selection, seen)
            following = bisect_right(positions, at)
    return is_of_frame


def _unknown(model: str | None) -> ClientFault:
    return ClientFault(
        f"The model {model!r} does not exist: no backend of the proxy's policy has it.",
        status=404,
        param="model",
        code="model_not_found",
    )


def _parameters(query: str) -> Mapping[str, tuple[str, ...]]:
    return {name: tuple(values) for name, values in parse_qs(query, keep_blank_values=True).items()}


def _joined(headers: Headers) -> Mapping[str, str]:
    joined: dict[str, str] = {}
    for name, value in headers:
        lower = name.lower()
        joined[lower] = f"{joined[lower]}, {value}" if lower in joined else value
    return joined


def _is_due(rule: Rule, run: _Run) -> bool:
    return run.draft.rejection is None and rule.on_error is None and rule.matcher.holds(run.facts)


def _passed_over(rule: Rule, run: _Run) -> Step | None:
    """Return why the rule is not due, or None where it is."""
    if run.draft.rejection is not None:
        return Step(rule, note=f"not reached: the rule {run.rejected_by!r} refuses the request")
    if rule.on_error is not None:
        return Step(rule, note="waits for a refusal")
    miss = rule.matcher.first_miss(run.facts)
    return Step(rule, miss=miss) if miss is not None else None


def _fire(rule: Rule, run: _Run) -> Step:
    draft, applied = _apply(rule, rule.acts, run)
    if applied is None:
        return Step(rule, note="matched, and found nothing to do")
    if rule.mode == "observe":
        run.observed.append(applied)
        return Step(rule, applied=applied, note="only observes")
    _take(run, draft, applied)
    return Step(rule, applied=applied)


def _take(run: _Run, draft: Draft, applied: Applied) -> None:
    run.applied.append(applied)
    run.draft = draft
    if draft.rejection is not None:
        run.rejected_by = applied.rule
    if run.facts.body is not draft.body and run.facts.body is not None:
        run.facts = run.facts.with_body(draft.body)


def _apply(rule: Rule, acts: Sequence[tuple[str, Act]], run: _Run) -> tuple[Draft, Applied | None]:
    draft, names, losses, warnings = run.draft, [], [], []
    for name, act in acts:
        change = act(draft)
        if change is None or (run.facts.body is None and _edits(draft, change.draft)):
            continue
        draft = change.draft
        names.append(name)
        losses += [change.loses] if change.loses else []
        warnings += [change.warning] if change.warning else []
        if draft.rejection is not None:
            break
    if not names:
        return run.draft, None
    return draft, Applied(rule.id, tuple(names), _loses(rule, losses), "; ".join(warnings) or None)


def _edits(before: Draft, after: Draft) -> bool:
    return after.body is not before.body or _shape(after) != _shape(before)


def _shape(draft: Draft) -> tuple[object, ...]:
    return draft.answer, draft.fan, draft.split, draft.undos


def _loses(rule: Rule, losses: list[str]) -> str | None:
    if rule.loses is None:
        return "; ".join(losses) or None
    return None if rule.loses == "nothing" else rule.loses


def _finish(
    run: _Run,
    backend: Backend,
    selection: Selection,
    *,
    strict: bool,
    tried: frozenset[str] = frozenset(),
    reactions: tuple[Reaction, ...] = (),
    skipped: frozenset[str] = frozenset(),
) -> Plan:
    refusal = _refusal(run, strict=strict) if run.applied else None
    base = Plan(
        backend=backend,
        facts=run.facts,
        draft=run.draft,
        applied=tuple(run.applied),
        observed=tuple(run.observed),
        refusal=refusal,
        tried=tried,
        is_strict=strict,
        may_react=refusal is None and _may_react(selection, run.facts, tried),
        reactions=reactions,
        skipped=skipped,
    )
    if refusal is not None or run.facts.body is None:
        return base
    counting = selection.counting
    counts = counting and any(rule.id not in tried and _holds(rule, run.facts) for rule in counting)
    asked = _asked(run) if counts else 0
    return with_branches(base, asked) if asked or _is_repaired(run.draft) else base


def _may_react(selection: Selection, facts: Facts, tried: frozenset[str]) -> bool:
    """Return whether a reactive rule that was not tried could still apply."""
    if selection.surely_reacts and not tried:
        return True
    return any(rule.id not in tried and _holds(rule, facts) for rule in selection.reactive)


def _is_repaired(draft: Draft) -> bool:
    """Return whether the request or its answer is another than the body's bytes ask for."""
    return bool(draft.body.is_edited or draft.undos or draft.split)


def _asked(run: _Run) -> int:
    """Return how many choices the backend is asked for in one request, 0 where fewer could not be told from enough."""
    draft = run.draft
    n: Any = draft.body.get("n")
    is_single = kind_of(draft.path) == "chat" or not isinstance(draft.body.get("prompt"), list)
    if draft.fan is not None or draft.split is not None or kind_of(draft.path) is None or not is_single:
        return 0
    if not is_integer(n) or n <= 1 or draft.body.repeated_name() is not None:
        return 0
    return int(n)


def _refusal(run: _Run, *, strict: bool) -> ProxyError | None:
    if run.draft.rejection is not None:
        return _rejected(run.draft.rejection, run.rejected_by)
    lossy = next((applied for applied in run.applied if applied.loses), None) if strict else None
    if lossy is not None:
        return ClientFault(
            f"The rule {lossy.rule!r} would repair this request at a loss ({lossy.loses}), "
            "and the request prefers handling=strict.",
            code="repair_refused",
        )
    twice = run.draft.body.repeated_name() if run.facts.body is not None and _is_repaired(run.draft) else None
    if twice is not None:
        return ClientFault(
            "The request's JSON holds a name twice at its top level, so the proxy can't tell which one to repair.",
            param=twice,
            code="duplicate_name",
        )
    return None


def _rejected(rejection: Rejection, rule: str) -> ClientFault:
    return ClientFault(
        f"{rejection.message} (rule {rule!r})", param=rejection.param, code=rejection.code or "request_rejected"
    )


def replan(old: Plan, failure: Failure, policy: Policy) -> Plan | None:
    """Return the plan that the reactive rules make of a refusal, or None where none of them knows it.

    All rules that know the refusal are applied together, each at most once a request.
    """
    run = _Run(old.facts, old.draft, list(old.applied), list(old.observed))
    fired, reactions = _react(old, failure, run)
    if not _edits(old.draft, run.draft) and run.draft.rejection is old.draft.rejection:
        return None
    try:
        if run.draft.body is not old.draft.body:
            run.draft = structs.replace(run.draft, body=with_fresh_id(run.draft.body))
        new = _finish(
            run,
            old.backend,
            old.backend.index.selection(run.facts),
            strict=old.is_strict,
            tried=old.tried | fired,
            reactions=(*old.reactions, *reactions),
            skipped=old.skipped,
        )
    except UnreadableBody:
        # A field that no rule looked at is no JSON, or one that was read lower on the stack is too deep to be written.
        return None
    return new


def observed(old: Plan, failure: Failure) -> Plan:
    """Return the plan with what reactive rules in observe mode would have done about a failure that none repairs."""
    run = _Run(old.facts, old.draft, list(old.applied), list(old.observed))
    _react(old, failure, run)
    return structs.replace(old, observed=tuple(run.observed))


def top_up(old: Plan, have: int) -> Plan | None:
    """Return the plan that asks for the choices which a branch did not give, or None where no rule says so.

    `have` is how many came. The first body is the old branch's, those after it are the new ones'.
    """
    run = _Run(old.facts, old.draft, list(old.applied), list(old.observed))
    fired, reactions = _react(old, Failure(None, fewer_choices=True), run)
    fan = run.draft.fan
    if fan is None or run.draft.rejection is not None or old.restore is None:
        return None
    # The choices that are there stay, so even a greedy answer is asked for again rather than copied.
    try:
        more = [body.encode() for body in branch_bodies(run.draft.body, structs.replace(fan, copies=1))[have:]]
    except UnreadableBody:
        return None
    spreads = (*old.restore.spreads, *(Spread(fan.n, offset) for offset in range(have, fan.n)))
    return structs.replace(
        old,
        bodies=(*old.bodies[:1], *more),
        restore=structs.replace(old.restore, spreads=spreads, concurrency=fan.concurrency, asked=0),
        applied=tuple(run.applied),
        tried=old.tried | fired,
        reactions=(*old.reactions, *reactions),
    )


def _react(old: Plan, failure: Failure, run: _Run) -> tuple[set[str], list[Reaction]]:
    fired: set[str] = set()
    reactions: list[Reaction] = []
    for rule in old.backend.rules:
        if not _is_open(rule, old) or not _holds(rule, run.facts):
            continue
        knowings = knowings_of(rule, failure)
        draft, applied = _reaction(rule, [act for _, acts in knowings for act in acts], run)
        if applied is None or (old.is_strict and applied.loses):
            continue
        fired.add(rule.id)
        if rule.mode == "observe":
            run.observed.append(applied)
            continue
        reactions += _lessons(rule, failure, knowings, run)
        _take(run, draft, applied)
    return fired, reactions


def _lessons(rule: Rule, failure: Failure, knowings: list[Knowing], run: _Run) -> Iterator[Reaction]:
    """Yield what each of a failure's captures led to by itself, so that a request with one field is known as well."""
    for entries, acts in knowings:
        draft, applied = _reaction(rule, acts, run)
        if applied is not None:
            yield Reaction(rule, failure.status, entries, _changed(run.draft.body, draft.body))


def _changed(before: Body, after: Body) -> tuple[str, ...]:
    """Return the top-level fields of `before` that `after` has not, or has otherwise."""
    return tuple(name for name in before if name not in after or _differs(before, after, name))


def _differs(before: Body, after: Body, name: str) -> bool:
    try:
        return bool(before[name] != after[name])
    except UnreadableBody:
        # What can't be read, no repair has looked at.
        return False


def _reaction(rule: Rule, acts: Sequence[tuple[str, Act]], run: _Run) -> tuple[Draft, Applied | None]:
    try:
        return _apply(rule, acts, run)
    except UnreadableBody:
        return run.draft, None


def _is_open(rule: Rule, old: Plan) -> bool:
    return rule.on_error is not None and rule.id not in old.tried


def _holds(rule: Rule, facts: Facts) -> bool:
    try:
        return rule.matcher.holds(facts)
    except UnreadableBody:
        return False
