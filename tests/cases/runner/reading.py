"""Case files → scripts: each case, or each of its variants, as what is to be played and what has to come of it."""

import re
from dataclasses import dataclass
from pathlib import Path

from proxy.policy.yaml_text import parse_yaml
from tests.cases.runner.values import check_keys

_CASE = {
    "id", "name", "about", "contract", "policy", "environ", "client", "backend", "expect", "then", "variants",
    "faults", "covered",
}  # fmt: skip
_EXCHANGE = {"client", "backend", "expect"}
_ID = re.compile(r"[A-G]\d\d(-[a-z0-9]+)+")


@dataclass(frozen=True, slots=True)
class Script:
    """One conversation of a client, the proxy and a backend."""

    id: str
    policy: object
    environ: dict
    exchanges: tuple


@dataclass(frozen=True, slots=True)
class FaultyPolicy:
    """A policy and the faults that are found in it, as regular expressions; none where it is good."""

    id: str
    text: str
    environ: dict
    faults: tuple


@dataclass(frozen=True, slots=True)
class Covered:
    """A case that another test shows, by path::name."""

    id: str
    test: str


def read_cases(folder: Path):
    """Return all that the case files of a folder hold. Raises: ValueError, naming the case, where one is no case."""
    cases = [case for file in sorted(folder.glob("*.yaml")) for case in _file(file)]
    names = [case.id for case in cases]
    doubles = {name for name in names if names.count(name) > 1}
    if doubles:
        raise ValueError(f"these cases have a name that is another's: {sorted(doubles)}")
    return cases


def _file(file):
    document = parse_yaml(file.read_text(), file.name).value
    check_keys(document, {"about", "shared", "cases"})
    for written in document["cases"]:
        try:
            yield from _case(written)
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{file.name}: {written.get('id')} {written.get('name', '')}: {error}") from error


def _case(written):
    check_keys(written, _CASE)
    if not _ID.fullmatch(written["id"]):
        raise ValueError("the id is not one of the catalogue's")
    if "covered" in written:
        tests = written["covered"] if isinstance(written["covered"], list) else [written["covered"]]
        yield from (Covered(f"{written['id']} {test}", test) for test in tests)
        return
    for variant, changes in written.get("variants", {"": {}}).items():
        check_keys(changes, _CASE - {"id", "name", "variants", "covered"})
        whole = merged({key: value for key, value in written.items() if key != "variants"}, changes)
        yield _run(whole, ", ".join(filter(None, [f"{written['id']} {written['name']}", variant])))


def _run(whole, name):
    environ = whole.get("environ", {})
    if "faults" in whole:
        return FaultyPolicy(name, whole["policy"], environ, tuple(whole["faults"]))
    exchanges = [{key: whole[key] for key in _EXCHANGE if key in whole}, *whole.get("then", [])]
    for exchange in exchanges:
        check_keys(exchange, _EXCHANGE)
    return Script(name, whole.get("policy", {}), environ, tuple(exchanges))


def merged(old, new):
    """Return a mapping with another's keys put over it, mapping by mapping."""
    both = dict(old)
    for key, value in new.items():
        is_nested = isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = merged(both[key], value) if is_nested else value
    return both
