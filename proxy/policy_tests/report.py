"""What is said of cases that were run: for people, for scripts, for a CI server that reads JUnit's XML."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree

from proxy.errors import Fault
from proxy.policy_tests.coverage import Gap, own_rules
from proxy.policy_tests.suite import Suite, Verdict


@dataclass(frozen=True, slots=True)
class Report:
    """All that came of the cases. `gaps` is None where coverage was not asked for."""

    suites: Sequence[Suite]
    faults: Sequence[Fault] = ()
    gaps: Sequence[Gap] | None = None

    @property
    def verdicts(self) -> list[Verdict]:
        """The cases of all files."""
        return [verdict for suite in self.suites for verdict in suite.verdicts]

    @property
    def is_good(self) -> bool:
        """Whether there were cases, and nothing is to be said against any."""
        bad = [verdict for verdict in self.verdicts if not verdict.is_good]
        return bool(self.verdicts) and not (bad or self.faults or self.gaps)


def as_text(report: Report) -> str:
    """Return the report for people: what is wrong, and one line of sums."""
    lines = [str(fault) for fault in report.faults]
    for verdict in report.verdicts:
        if not verdict.is_good:
            lines += [f"{_place(verdict.case.place)}: failed: {verdict.case.name}", *_indented(verdict.complaints)]
    lines += [str(gap) for gap in report.gaps or ()]
    return "\n".join([*lines, _sums(report)]) + "\n"


def _place(place: Fault) -> str:
    return f"{place.file}:{place.line}:{place.column}"


def _indented(complaints: Sequence[str]) -> list[str]:
    return [f"  {line}" for complaint in complaints for line in complaint.splitlines()]


def _sums(report: Report) -> str:
    verdicts = report.verdicts
    failed = sum(not verdict.is_good for verdict in verdicts)
    if not verdicts:
        return "no case was run: nothing is tested"
    said = [f"{_count(len(verdicts), 'case')}, {failed or 'none'} failed"]
    if report.faults:
        said.append(f"{_count(len(report.faults), 'fault')} in the files")
    if report.gaps is not None:
        said.append(_coverage(report, report.gaps))
    return "; ".join(said)


def _coverage(report: Report, gaps: Sequence[Gap]) -> str:
    total = len({(suite.key, rule.id) for suite in report.suites for rule in own_rules(suite)})
    untried = len({gap.place for gap in gaps})
    if not total:
        return "no rules of the policy's own to cover"
    return f"{untried} of {_count(total, 'rule')} not covered" if untried else f"{_count(total, 'rule')} covered"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def as_json(report: Report) -> str:
    """Return the report for scripts."""
    told = {
        "cases": [_case(verdict) for verdict in report.verdicts],
        "faults": [
            {"file": fault.file, "line": fault.line, "column": fault.column, "message": fault.message}
            for fault in report.faults
        ],
        "gaps": None
        if report.gaps is None
        else [{"rule": gap.rule, "place": gap.place, "why": gap.why} for gap in report.gaps],
        "good": report.is_good,
    }
    return json.dumps(told, indent=2, ensure_ascii=False) + "\n"


def _case(verdict: Verdict) -> dict[str, object]:
    case = verdict.case
    return {
        "file": case.place.file,
        "line": case.place.line,
        "column": case.place.column,
        "name": case.name,
        "row": case.row,
        "good": verdict.is_good,
        "complaints": list(verdict.complaints),
        "rules": [applied.rule for applied in verdict.outcome.applied],
    }


def as_junit(report: Report) -> str:
    """Return the report as JUnit's XML, a suite a file; what is wrong apart from cases is a suite of errors."""
    root = ElementTree.Element("testsuites")
    for suite in report.suites:
        element = _element(root, suite.file.file, len(suite.verdicts))
        element.set("failures", str(sum(not verdict.is_good for verdict in suite.verdicts)))
        for verdict in suite.verdicts:
            case = _testcase(element, suite.file.file, verdict.case.name, verdict.case.place)
            if not verdict.is_good:
                _said(case, "failure", "\n".join(verdict.complaints))
    wrong = [*map(str, report.faults), *map(str, report.gaps or ())]
    if wrong:
        element = _element(root, "policy", len(wrong))
        element.set("errors", str(len(wrong)))
        for message in wrong:
            _said(_testcase(element, "policy", message, None), "error", message)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _element(root: ElementTree.Element, name: str, tests: int) -> ElementTree.Element:
    return ElementTree.SubElement(root, "testsuite", name=_clean(name), tests=str(tests))


def _testcase(suite: ElementTree.Element, file: str, name: str, place: Fault | None) -> ElementTree.Element:
    at = {"file": _clean(place.file), "line": str(place.line)} if place is not None else {}
    return ElementTree.SubElement(suite, "testcase", at, classname=_clean(file), name=_clean(name))


def _said(case: ElementTree.Element, kind: str, message: str) -> None:
    ElementTree.SubElement(case, kind, message=_clean(message.splitlines()[0])).text = _clean(message)


def _clean(text: str) -> str:
    """Return the text without the characters that XML 1.0 can't hold."""
    return "".join(character for character in text if character in "\t\n" or character >= " ")


FORMATS: Final[Mapping[str, Callable[[Report], str]]] = {"text": as_text, "json": as_json, "junit": as_junit}
