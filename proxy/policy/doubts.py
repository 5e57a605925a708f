"""What a policy says that is no fault but can't be meant: rules that never fire, names that name nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proxy.matching import Expanded, Problem, compile_globs, did_you_mean
from proxy.policy import contradictions, implications, schema
from proxy.policy.packs import Pack, arrange
from proxy.policy.shadows import find_shadows


def find_doubts(file: schema.PolicyFile, main: Pack, packs: Mapping[str, Pack]) -> list[Problem]:
    """Return the doubts about the policy's own text, by place in it."""
    return [
        *_unknown_ids(file, main, packs),
        *_unreachable_backends(file),
        *(doubt for written in main.rules for doubt in _rule_doubts(written.raw, written.place, file)),
        *find_shadows(file, main, arrange(main, packs, file.disable)),
    ]


def _unknown_ids(file: schema.PolicyFile, main: Pack, packs: Mapping[str, Pack]) -> Iterator[Problem]:
    preset_ids = set[str]().union(*(pack.ids() for pack in packs.values()))
    for index, rule_id in enumerate(file.disable):
        if rule_id not in preset_ids | main.ids():
            yield ("disable", index), _nothing_to_disable(rule_id, preset_ids, packs)
    for written in main.rules:
        rule_id = written.rule.id
        if "/" in rule_id and rule_id.split("/")[0] in packs and rule_id not in preset_ids:
            near = did_you_mean(rule_id, preset_ids)
            yield (*written.place, "id"), f'the preset has no rule "{rule_id}" that this one could replace{near}'


def _nothing_to_disable(rule_id: str, preset_ids: set[str], packs: Mapping[str, Pack]) -> str:
    preset, slash, _ = rule_id.partition("/")
    if preset in packs and not slash:
        return f'"{rule_id}" is a preset, not a rule: to do without it leave it out of `presets`'
    if slash and preset not in packs:
        return f'no backend has a preset "{preset}" whose rules could be switched off{did_you_mean(preset, packs)}'
    return f'there is no rule "{rule_id}" to switch off{did_you_mean(rule_id, preset_ids)}'


def _unreachable_backends(file: schema.PolicyFile) -> Iterator[Problem]:
    greedy = None
    for name, backend in file.backends.items():
        if greedy is not None:
            yield ("backends", name), f'no request comes to this backend: "{greedy}" before it takes every model'
        elif "*" in backend.models:
            greedy = name


def _rule_doubts(raw: Any, place: tuple[str | int, ...], file: schema.PolicyFile) -> Iterator[Problem]:
    yield from _empty_variables({key: raw[key] for key in raw if key != "about"}, place)
    yield from _on_error_doubts(raw, (*place, "on_error"))
    yield from _when_doubts(raw.get("when") or {}, (*place, "when"), file)


def _empty_variables(raw: Any, place: tuple[Any, ...]) -> Iterator[Problem]:
    """Yield the variables of a rule that stand for nothing; elsewhere in a policy that means `not set` (api_key)."""
    if isinstance(raw, Expanded) and not raw:
        yield place, f"{raw.source} stands for nothing here: the variable is not set, or empty"
    items = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    for key, item in items:
        yield from _empty_variables(item, (*place, key))


def _on_error_doubts(raw: Any, place: tuple[str | int, ...]) -> Iterator[Problem]:
    on_error = raw.get("on_error") or {}
    said = [key for key in ("status", "code", "param") if on_error.get(key) is not None]
    ends = on_error.get("stream") or []
    ends = ends if isinstance(ends, list) else [ends]
    if on_error.get("choices"):
        besides = [key for key in ("status", "message", "each", "code", "param", "stream") if on_error.get(key)]
        if besides:
            yield (*place, besides[0]), f"the rule can never fire: an answer of fewer choices has no {besides[0]}"
        elif not any("fan_out" in entry for entry in raw["repair"]):
            yield (*place, "choices"), "the rule can never fire: only `fan_out` asks for the choices that are missing"
    elif said and ends and "error" not in ends:
        yield (*place, said[0]), f"the rule can never fire: a stream that is {' or '.join(ends)} has no {said[0]}"


def _when_doubts(when: Mapping[str, Any], place: tuple[str | int, ...], file: schema.PolicyFile) -> Iterator[Problem]:
    doubts = [*_backend_doubts(when, place, file), *_test_doubts(when, place)]
    yield from doubts
    if not doubts and implications.never_holds(when):
        yield place, "the rule can never fire: its `when` contradicts itself"


def _backend_doubts(
    when: Mapping[str, Any], place: tuple[str | int, ...], file: schema.PolicyFile
) -> Iterator[Problem]:
    if "backend" in when:
        _, matches = compile_globs(when["backend"])
        if not any(map(matches, file.backends)):
            near = did_you_mean(when["backend"], file.backends)
            yield (*place, "backend"), f"the rule can never fire: no backend has such a name{near}"


def _test_doubts(when: Mapping[str, Any], place: tuple[str | int, ...]) -> Iterator[Problem]:
    for kind in ("body", "header", "query"):
        for name, test in (when.get(kind) or {}).items():
            if contradictions.never_holds(test):
                yield (*place, kind, name), "the rule can never fire: no value passes this test"
