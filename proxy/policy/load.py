"""A policy's text → Policy, or every fault of it at once.

text → source (values, places) ─┬─ schema ──┐
                                ├─ rules ───┼─ compile → Policy
                presets → source + rules ───┘
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from proxy.errors import Fault, PolicyFault
from proxy.matching import KEY, BadTest, did_you_mean
from proxy.policy.compile import compile_policy
from proxy.policy.model import Policy
from proxy.policy.packs import Pack, Written
from proxy.policy.presets import preset_names, preset_text
from proxy.policy.rules import compile_rule
from proxy.policy.schema import PolicyFile, PresetFile
from proxy.policy.source import Source
from proxy.policy.urls import check_url
from proxy.policy.validate import look_up, validated
from proxy.policy.yaml_text import decode_text
from proxy.repairs import REPAIRS
from proxy.repairs.card import Card

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Language:
    """What a policy may name: repairs, presets with their texts, variables."""

    repairs: Mapping[str, Card]
    presets: Mapping[str, str]
    environ: Mapping[str, str]


def load_policy(
    path: str | Path,
    *,
    environ: Mapping[str, str],
    text: str | None = None,
    backend_url: str | None = None,
    repairs: Mapping[str, Card] = REPAIRS,
    presets: Mapping[str, str] | None = None,
) -> Policy:
    """Return the policy of a file, or of `text` under the file's name; `backend_url` replaces the first backend's.

    Raises: PolicyFault with every fault, OSError where the file can't be read.
    """
    file = str(path)
    if backend_url is not None:
        _check_backend_url(backend_url)
    if text is None:
        text = decode_text(Path(path).read_bytes(), file)
    known = {name: preset_text(name) for name in preset_names()} if presets is None else presets
    language = Language(repairs, known, environ)
    source = Source(text, file, environ, first_url=backend_url)
    policy_file = _schema(source, PolicyFile)
    main = _pack(source, language)
    packs = {name: _preset(name, language, source.faults) for name in _preset_names(source, known)}
    if source.faults or policy_file is None:
        raise PolicyFault(_in_order(source.faults, file))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return compile_policy(policy_file, main, packs, source, digest)


def _check_backend_url(url: str) -> None:
    try:
        check_url(url)
    except ValueError as error:
        raise PolicyFault([Fault(str(error), "--backend")]) from error


def _in_order(faults: list[Fault], file: str) -> list[Fault]:
    return sorted(dict.fromkeys(faults), key=lambda fault: (fault.file != file, fault.file, fault.line, fault.column))


def _schema(source: Source, model: type[M]) -> M | None:
    """Return the file's model; what is wrong inside its rules is told by `compile_rule`."""
    try:
        return validated(model, source.value)
    except BadTest as bad:
        source.add(problem for problem in bad.problems if not _is_in_rule(problem[0]))
        return None


def _is_in_rule(place: tuple[Any, ...]) -> bool:
    return place[:1] == ("rules",) and len(place) > 1 and place[1] is not KEY


def _pack(source: Source, language: Language, preset: str | None = None) -> Pack:
    """Return the rules of a file under their full ids."""
    written: list[Written] = []
    first_seen: dict[str, str] = {}
    for index, raw in enumerate(source.rules()):
        place = ("rules", index)
        _refuse_repeated_id(source, index, first_seen)
        try:
            rule = compile_rule(raw, preset, source.position(place), language.repairs)
        except BadTest as bad:
            source.add(bad.problems, *place)
        else:
            written.append(Written(rule, raw, place))
    return Pack(preset, tuple(written))


def _refuse_repeated_id(source: Source, index: int, first_seen: dict[str, str]) -> None:
    place = ("rules", index, "id")
    rule_id = look_up(source.value, place)
    if not isinstance(rule_id, str):
        return
    if rule_id in first_seen:
        source.add([((), f"a rule of this id stands already at {first_seen[rule_id]}")], *place)
    first_seen.setdefault(rule_id, source.position(place))


def _preset_names(source: Source, known: Mapping[str, str]) -> list[str]:
    """Return the names of the presets that any backend has, in the order in which they are first named."""
    backends = look_up(source.value, ("backends",))
    names: dict[str, None] = {}
    for backend in backends if isinstance(backends, dict) else ():
        place = ("backends", backend, "presets")
        presets = look_up(source.value, place)
        for index, name in enumerate(presets if isinstance(presets, list) else ()):
            if not isinstance(name, str):
                continue
            if name not in known:
                source.add([((), f'unknown preset "{name}"{did_you_mean(name, known)}')], *place, index)
            elif name in presets[:index]:
                source.add([((), f'the preset "{name}" stands here twice')], *place, index)
            else:
                names[name] = None
    return list(names)


def _preset(name: str, language: Language, faults: list[Fault]) -> Pack:
    try:
        source = Source(language.presets[name], f"presets/{name}.yaml", language.environ)
    except PolicyFault as fault:
        faults += fault.faults
        return Pack(name, ())
    model = _schema(source, PresetFile)
    if model is not None and model.preset != name:
        source.add([((), f'the preset "{model.preset}" stands in the file of "{name}"')], "preset")
    pack = _pack(source, language, name)
    faults += source.faults
    return pack
