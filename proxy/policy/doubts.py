"""What a policy says that is no fault but can't be meant: rules that never fire, names that name nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proxy.matching import Problem, compile_globs, did_you_mean
from proxy.policy import schema
from proxy.policy.contradictions import never_holds
from proxy.policy.packs import Pack


def find_doubts(file: schema.PolicyFile, main: Pack, packs: Mapping[str, Pack]) -> list[Problem]:
    """Return the doubts about the policy's own text, by place in it."""
    return [
        *_unknown_ids(file, main, packs),
        *_unreachable_backends(file),
        *(doubt for written in main.rules for doubt in _rule_doubts(written.raw, written.place, file)),
    ]


def _unknown_ids(file: schema.PolicyFile, main: Pack, packs: Mapping[str, Pack]) -> Iterator[Problem]:
    preset_ids = set[str]().union(*(pack.ids() for pack in packs.values()))
    for index, rule_id in enumerate(file.disable):
        if rule_id not in preset_ids | main.ids():
            yield ("disable", index), f'there is no rule "{rule_id}" to switch off{did_you_mean(rule_id, preset_ids)}'
    for written in main.rules:
        rule_id = written.rule.id
        if "/" in rule_id and rule_id.split("/")[0] in packs and rule_id not in preset_ids:
            near = did_you_mean(rule_id, preset_ids)
            yield (*written.place, "id"), f'the preset has no rule "{rule_id}" that this one could replace{near}'


def _unreachable_backends(file: schema.PolicyFile) -> Iterator[Problem]:
    greedy = None
    for name, backend in file.backends.items():
        if greedy is not None:
            yield ("backends", name), f'no request comes to this backend: "{greedy}" before it takes every model'
        elif "*" in backend.models:
            greedy = name


def _rule_doubts(raw: Any, place: tuple[str | int, ...], file: schema.PolicyFile) -> Iterator[Problem]:
    if "learn" in raw:
        yield (*place, "learn"), "`learn` is read, but not carried out by this version"
    if (raw.get("on_error") or {}).get("choices"):
        yield (*place, "on_error", "choices"), "`choices: fewer` is read, but not carried out by this version"
    when = raw.get("when") or {}
    if "backend" in when:
        _, matches = compile_globs(when["backend"])
        if not any(map(matches, file.backends)):
            near = did_you_mean(when["backend"], file.backends)
            yield (*place, "when", "backend"), f"the rule can never fire: no backend has such a name{near}"
    for kind in ("body", "header", "query"):
        for name, test in (when.get(kind) or {}).items():
            if never_holds(test):
                yield (*place, "when", kind, name), "the rule can never fire: no value passes this test"
