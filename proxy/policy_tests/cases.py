"""A case file's text → its cases, each with its place, or every fault of it at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import msgspec

from proxy.engine import Request
from proxy.errors import Fault, PolicyFault
from proxy.matching import BadTest
from proxy.policy.validate import validated
from proxy.policy.yaml_text import Document, parse_yaml
from proxy.policy_tests.met import Fewer, met_answer
from proxy.policy_tests.schema import Expect, RequestCase, TestCase, TestFile
from proxy.refusals import Failure


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `after` are the answers that led to another round, `answered` is the backend's last."""

    name: str
    place: Fault
    row: str | None
    request: Request
    after: tuple[Failure | Fewer, ...]
    answered: dict[str, Any] | list[dict[str, Any]] | None
    expect: Expect


@dataclass(frozen=True, slots=True)
class Impossible:
    """A row of the catalogue that no repair can help, and why."""

    row: str
    why: str


@dataclass(frozen=True, slots=True)
class CaseFile:
    """The cases of one file, in order, and the policy that they are for: its file, or a preset's name."""

    file: str
    policy: str | None
    preset: str | None
    about: str | None
    env: dict[str, str]
    entries: tuple[Case | Impossible, ...]
    document: Document

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases that can be run."""
        return tuple(entry for entry in self.entries if isinstance(entry, Case))


def read_cases(text: str, file: str) -> CaseFile:
    """Return the cases of a text.

    Raises: PolicyFault with every fault.
    """
    document = parse_yaml(text, file)
    try:
        model = validated(TestFile, document.value)
    except BadTest as bad:
        raise PolicyFault([document.fault(place, message) for place, message in bad.problems]) from bad
    faults = [*_repeated_names(model, document)]
    entries: list[Case | Impossible] = []
    for index, test in enumerate(model.tests):
        try:
            entries.append(_entry(test, document.fault(("tests", index), test.name or "")))
        except BadTest as bad:
            faults += [document.fault(place, message) for place, message in bad.under("tests", index)]
    if faults:
        raise PolicyFault(faults)
    return CaseFile(file, model.policy, model.preset, model.about, model.env, tuple(entries), document)


def _repeated_names(model: TestFile, document: Document) -> Iterator[Fault]:
    seen: dict[str, int] = {}
    for index, test in enumerate(model.tests):
        if test.name is not None and test.name in seen:
            line, _ = document.position(("tests", seen[test.name]))
            yield document.fault(("tests", index, "name"), f"a case of this name stands already on line {line}")
        elif test.name is not None:
            seen[test.name] = index


def _entry(test: TestCase, place: Fault) -> Case | Impossible:
    if test.impossible is not None:
        return Impossible(test.row or "", test.impossible)
    request, expect = test.request or RequestCase(), test.expect or Expect(rules=[])
    met = test.after if isinstance(test.after, list) else [test.after] if test.after is not None else []
    return Case(
        name=test.name or "",
        place=place,
        row=test.row,
        request=_request(request),
        after=tuple(met_answer(answer) for answer in met),
        answered=test.answered,
        expect=expect,
    )


def _request(raw: RequestCase) -> Request:
    query = raw.query if isinstance(raw.query, str) else urlencode(raw.query, doseq=True)
    body = msgspec.json.encode(raw.body) if "body" in raw.model_fields_set else None
    if raw.text is not None:
        body = raw.text.encode()
    return Request(raw.method, raw.path, query, list(raw.headers.items()), body)
