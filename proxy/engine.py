"""What is to be done for one request: the policy's rules run over it, top to bottom, and the plan that comes of it.

    request ── plan ──► Plan: the backend, the bodies of its branches, how the answers are restored, what is told
    Plan + Failure ── replan ──► another Plan, or None when no rule knows the refusal

Pure: the same request and policy give the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import parse_qs

from proxy.body import Body, UnreadableBody
from proxy.errors import ClientFault, ProxyError, ProxyFault
from proxy.headers import Headers, is_strict
from proxy.matching import BadTest, Facts, compile_globs
from proxy.matching.values import is_integer
from proxy.policy import Backend, OnError, Policy, Rule
from proxy.refusals import Failure
from proxy.repairs.card import Act, Answer, Draft, Fan, Rejection, Undo
from proxy.repairs.fan_out import branch_bodies
from proxy.repairs.split import split_bodies
from proxy.spread import Spread

Kind = Literal["chat", "text"]
Usage = Literal["once", "sum"]

EMPTY = Body.of({})


@dataclass(frozen=True, slots=True)
class Request:
    """What the client sent. `body` is None when it is not read but streamed on."""

    method: str
    path: str
    query: str
    headers: Headers
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Applied:
    """A rule that did something. `loses` is None when the client can't tell the difference."""

    rule: str
    repairs: tuple[str, ...]
    loses: str | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class Restore:
    """How the branches' answers become the one that the client asked for."""

    kind: Kind | None
    stream: bool
    include_usage: bool
    spreads: tuple[Spread, ...] = (Spread(1),)
    total: int | None = None
    concurrency: int = 0
    usage: Usage = "once"
    model: str = ""
    undos: tuple[Callable[[], Undo], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done. `bodies` is empty when the client's own bytes go on; `refusal` ends it before any branch."""

    backend: Backend
    facts: Facts
    draft: Draft
    bodies: tuple[bytes, ...] = ()
    restore: Restore | None = None
    applied: tuple[Applied, ...] = ()
    observed: tuple[Applied, ...] = ()
    refusal: ProxyError | None = None
    tried: frozenset[str] = frozenset()
    is_strict: bool = False

    @property
    def kind(self) -> Kind | None:
        """What the request's path answers with; None for a path that has no chunks."""
        return kind_of(self.facts.path)

    @property
    def may_react(self) -> bool:
        """Whether a reactive rule could still apply."""
        return any(_is_open(rule, self) and _holds(rule, self.facts) for rule in self.backend.rules)


@dataclass(frozen=True, slots=True)
class Step:
    """What a rule did with a request, for `explain`. `miss` is the first check that failed and the value it met."""

    rule: Rule
    applied: Applied | None = None
    miss: tuple[str, Any] | None = None
    note: str = ""


@dataclass(slots=True)
class _Run:
    facts: Facts
    draft: Draft
    applied: list[Applied] = field(default_factory=list)
    observed: list[Applied] = field(default_factory=list)
    rejected_by: str = ""


def kind_of(path: str) -> Kind | None:
    """Return the kind of completion that a path answers with, wherever it is mounted."""
    if path.endswith("/chat/completions"):
        return "chat"
    return "text" if path.endswith("/completions") else None


def inspected_paths(policy: Policy) -> Callable[[str], bool]:
    """Return whether the body of a request for a path has to be read: a rule may look into it, or its model routes."""
    if len(policy.backends) > 1:
        return lambda _path: True
    globs = {glob for backend in policy.backends for rule in backend.rules for glob in rule.matcher.paths}
    return compile_globs(sorted(globs))[1] if globs else lambda _path: False


def plan(request: Request, policy: Policy, trace: list[Step] | None = None) -> Plan:
    """Return the plan for a request; `trace`, when given, gets a Step for each rule.

    Raises: ClientFault 404 where no backend has the model.
    """
    body = Body.parse(request.body) if request.body else None
    model = _model(body)
    try:
        return _plan(request, policy, model, body, trace)
    except UnreadableBody:
        # A value that a rule looked into is no JSON: then the body matches nothing and goes on as it came.
        if trace is not None:
            trace.clear()
        return _plan(request, policy, model, None, trace)


def _model(body: Body | None) -> str | None:
    try:
        model = body.get("model") if body is not None else None
    except UnreadableBody:
        return None
    return model if isinstance(model, str) else None


def _plan(request: Request, policy: Policy, model: str | None, body: Body | None, trace: list[Step] | None) -> Plan:
    backend = _backend(policy, model)
    facts = Facts(
        method=request.method,
        path=request.path,
        query={name: tuple(values) for name, values in parse_qs(request.query, keep_blank_values=True).items()},
        headers=_joined(request.headers),
        model=model,
        backend=backend.name,
        body=body,
    )
    draft = Draft(body if body is not None else EMPTY, path=request.path, max_branches=policy.limits.branches)
    run = _Run(facts, draft)
    for rule in backend.rules:
        step = _step(rule, run)
        if trace is not None:
            trace.append(step)
    return _finish(run, backend, strict=is_strict(request.headers), tried=frozenset())


def _backend(policy: Policy, model: str | None) -> Backend:
    backend = policy.backend_for(model)
    if backend is None:
        raise ClientFault(
            f"The model {model!r} does not exist: no backend of the proxy's policy has it.",
            status=404,
            param="model",
            code="model_not_found",
        )
    return backend


def _joined(headers: Headers) -> Mapping[str, str]:
    joined: dict[str, str] = {}
    for name, value in headers:
        lower = name.lower()
        joined[lower] = f"{joined[lower]}, {value}" if lower in joined else value
    return joined


def _step(rule: Rule, run: _Run) -> Step:
    if run.draft.rejection is not None:
        return Step(rule, note=f"not reached: {run.rejected_by} refuses the request")
    if rule.on_error is not None:
        return Step(rule, note="waits for a refusal")
    miss = rule.matcher.first_miss(run.facts)
    if miss is not None:
        return Step(rule, miss=miss)
    draft, applied = _apply(rule, tuple((repair.name, repair.instantiate({})) for repair in rule.repairs), run)
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
    if run.facts.body is not None:
        run.facts = replace(run.facts, body=draft.body)


def _apply(rule: Rule, acts: tuple[tuple[str, Act], ...], run: _Run) -> tuple[Draft, Applied | None]:
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


def _finish(run: _Run, backend: Backend, *, strict: bool, tried: frozenset[str]) -> Plan:
    base = Plan(
        backend=backend,
        facts=run.facts,
        draft=run.draft,
        applied=tuple(run.applied),
        observed=tuple(run.observed),
        tried=tried,
        is_strict=strict,
    )
    refusal = _refusal(run, strict=strict)
    if refusal is not None:
        return replace(base, refusal=refusal)
    if run.facts.body is None or not (run.draft.body.is_edited or run.draft.undos):
        return base
    return _with_branches(base)


def _refusal(run: _Run, *, strict: bool) -> ProxyError | None:
    if run.draft.rejection is not None:
        return _rejected(run.draft.rejection, run.rejected_by)
    lossy = next((applied for applied in run.applied if applied.loses), None)
    if strict and lossy is not None:
        return ClientFault(
            f"The rule {lossy.rule!r} would repair this request at a loss ({lossy.loses}), "
            "and the request prefers handling=strict.",
            code="repair_refused",
        )
    if run.facts.body is not None and run.draft.body.is_edited and _is_ambiguous(run.draft.body):
        return ClientFault(
            "The request's JSON holds a name twice at its top level, so the proxy can't tell which one to repair.",
            code="duplicate_name",
        )
    return None


def _is_ambiguous(body: Body) -> bool:
    return bool(body.source) and body.has_repeated_name()


def _rejected(rejection: Rejection, rule: str) -> ClientFault:
    return ClientFault(
        f"{rejection.message} (rule {rule!r})", param=rejection.param, code=rejection.code or "request_rejected"
    )


def _with_branches(base: Plan) -> Plan:
    draft = base.draft
    groups = split_bodies(draft.body, draft.split) if draft.split is not None else [draft.body]
    branches = [branch for group in groups for branch in (branch_bodies(group, draft.fan) if draft.fan else [group])]
    bodies = tuple(branch.encode() for branch in branches)
    if not _has_to_be_restored(draft):
        return replace(base, bodies=bodies)
    kind = base.kind
    if kind is None and (draft.answer is not None or draft.fan is not None):
        rules = ", ".join(repr(applied.rule) for applied in base.applied)
        return replace(
            base,
            refusal=ProxyFault(
                f"The policy changes the shape of an answer of {base.facts.path}, which has no chunks: "
                f"keep `stream` and `fan_out` to /v1/chat/completions and /v1/completions (rules {rules}).",
                code="policy_error",
            ),
        )
    return replace(base, bodies=bodies, restore=_restore(draft, kind, base.facts.model or "", len(groups)))


def _is_split(draft: Draft) -> bool:
    return draft.fan is not None or draft.split is not None


def _has_to_be_restored(draft: Draft) -> bool:
    if draft.undos or _is_split(draft):
        return True
    if draft.answer is None:
        return False
    streams = draft.body.get("stream") is True
    return draft.answer.stream != streams or (streams and draft.answer.include_usage != wants_usage(draft.body))


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Return whether a streamed answer to this body ends with a usage chunk."""
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _restore(draft: Draft, kind: Kind | None, model: str, groups: int) -> Restore:
    answer = draft.answer or Answer(draft.body.get("stream") is True, wants_usage(draft.body))
    restoring = Restore(kind, answer.stream, answer.include_usage, model=model, undos=draft.undos[::-1])
    if not _is_split(draft):
        return restoring
    fan, split = draft.fan or Fan(1), draft.split
    limits = {fan.concurrency, split.concurrency if split is not None else 0} - {0}
    return replace(
        restoring,
        spreads=tuple(_spreads(fan, groups, split.size if split is not None else 0, _own(draft, kind))),
        total=fan.n * (_prompts(draft.body) if kind == "text" else 1) if draft.fan is not None else None,
        concurrency=min(limits, default=0),
        usage="sum" if fan.usage == "sum" else "once",
    )


def _spreads(fan: Fan, groups: int, size: int, own: int) -> Iterator[Spread]:
    """Yield where each branch's choices go: group by group, in each the n branches of its fan-out.

    `own` is how many choices the backend itself makes of each element of a group.
    """
    for group in range(groups):
        start = group * size * own * fan.n
        if fan.copies > 1:
            yield Spread(fan.n, start, fan.copies, group)
        else:
            yield from (Spread(fan.n, start + offset, 1, group) for offset in range(fan.n))


def _own(draft: Draft, kind: Kind | None) -> int:
    n: Any = draft.body.get("n")
    return int(n) if kind is not None and is_integer(n) and n > 1 else 1


def _prompts(body: Mapping[str, Any]) -> int:
    """Return how many prompts a completion request holds: text, token ids, or a list of either."""
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1


def replan(old: Plan, failure: Failure, policy: Policy) -> Plan | None:
    """Return the plan that the reactive rules make of a refusal, or None where none of them knows it.

    All rules that know the refusal are applied together, each at most once a request.
    """
    run = _Run(old.facts, old.draft, list(old.applied), list(old.observed))
    fired: set[str] = set()
    for rule in old.backend.rules:
        if not _is_open(rule, old) or not _holds(rule, run.facts):
            continue
        draft, applied = _reaction(rule, failure, run)
        if applied is None or (old.is_strict and applied.loses):
            continue
        fired.add(rule.id)
        if rule.mode == "observe":
            run.observed.append(applied)
        else:
            _take(run, draft, applied)
    if not _edits(old.draft, run.draft):
        return None
    return _finish(run, old.backend, strict=old.is_strict, tried=old.tried | fired)


def _reaction(rule: Rule, failure: Failure, run: _Run) -> tuple[Draft, Applied | None]:
    acts = tuple(_acts(rule, failure))
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


def _acts(rule: Rule, failure: Failure) -> Iterator[tuple[str, Act]]:
    if rule.on_error is None:
        return
    for captures in _captures(rule.on_error, failure):
        for repair in rule.repairs:
            try:
                yield repair.name, repair.instantiate(captures)
            except BadTest:
                # What the refusal's text gave means nothing in this repair, so the rule does not know this refusal.
                return


def _captures(on_error: OnError, failure: Failure) -> list[Mapping[str, str]]:
    """Return the captures of each time that the refusal is one the rule knows; [] when it is not."""
    if on_error.status is not None and failure.status not in on_error.status:
        return []
    if on_error.stream and failure.stream not in on_error.stream:
        return []
    if on_error.code not in (None, failure.code) or on_error.param not in (None, failure.param):
        return []
    text, captures = failure.text, {}
    if on_error.message is not None:
        match = on_error.message.search(failure.text)
        if match is None:
            return []
        text, captures = match[0], _named(match.groupdict())
    if on_error.each is None:
        return [captures]
    return [captures | _named(found.groupdict()) for found in on_error.each.finditer(text)]


def _named(groups: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in groups.items() if value is not None}
