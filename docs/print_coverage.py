"""Print docs/coverage.md: what is done about each row of a backend's catalogue. `make gen` puts it there.

Nothing is claimed that was not tried: the page is made by running the presets' cases, and not made where one fails.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from docs.print_presets import plain
from proxy.errors import PolicyFault
from proxy.policy_tests import Case, Impossible, Suite, Verdict, run_suite

CASES = Path(__file__).parent.parent / "tests" / "presets"
REPAIRED, TOLD, SERVED, PASSED_ON, IMPOSSIBLE = "repaired", "told", "served as it is", "passed on", "impossible"

INTRODUCTION = """# Coverage

What the presets do about each row of the catalogues: what a backend refuses, ignores or answers wrongly.

| word | meaning |
|---|---|
| repaired | the request is changed, or asked in another way, so that the client gets an answer |
| told | the client learns of it: a refusal that says why, or a warning in `Mendproxy-Repairs` |
| served as it is | the backend takes it, and the request goes on byte for byte |
| passed on | the backend's own refusal says all that there is to say, and goes to the client |
| impossible | no repair can help, and why |

<!-- Made from tests/presets by `make gen`: every row was tried by the cases there. Edit those. -->
"""


@dataclass
class Row:
    """What the cases of one row show."""

    name: str
    kinds: set[str] = field(default_factory=set)
    rules: dict[str, None] = field(default_factory=dict)
    losses: dict[str, None] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The best that is done about the row."""
        return next(kind for kind in (REPAIRED, TOLD, IMPOSSIBLE, SERVED, PASSED_ON) if kind in self.kinds)


def rows(suite: Suite) -> list[Row]:
    """Return the rows of a backend's catalogue, in the order of its cases."""
    found: dict[str, Row] = {}
    verdicts = iter(suite.verdicts)
    for entry in suite.file.entries:
        verdict = next(verdicts) if isinstance(entry, Case) else None
        if entry.row is None:
            continue
        row = found.setdefault(entry.row, Row(entry.row))
        if isinstance(entry, Impossible):
            row.kinds.add(IMPOSSIBLE)
            row.reasons.append(entry.why)
        elif verdict is not None:
            note(row, verdict)
    return list(found.values())


def note(row: Row, verdict: Verdict) -> None:
    """Add to the row what a case of it shows."""
    outcome = verdict.outcome
    row.kinds.add(kind_of(verdict))
    row.rules |= dict.fromkeys(applied.rule for applied in outcome.applied)
    if outcome.refusal is not None:
        rejection = outcome.plan.draft.rejection if outcome.plan is not None else None
        row.reasons.append(outcome.refusal.message if rejection is None else rejection.message)
    else:
        row.losses |= dict.fromkeys(applied.loses for applied in outcome.applied if applied.loses)
    row.reasons += [applied.warning for applied in outcome.applied if applied.warning]


def kind_of(verdict: Verdict) -> str:
    """Return what became of a case's request."""
    outcome = verdict.outcome
    if outcome.refusal is not None or (outcome.applied and outcome.is_untouched):
        return TOLD
    if outcome.unmet:
        return PASSED_ON
    return REPAIRED if outcome.applied else SERVED


def line(row: Row) -> str:
    """Return the row's line of the table."""
    by = "<br>".join(f"`{rule}`" for rule in row.rules)
    cost = "; ".join(row.losses) or ("nothing" if row.kind == REPAIRED else "")
    why = "; ".join(dict.fromkeys(row.reasons))
    return f"| {plain(row.name)} | {row.kind} | {by} | {plain(cost)} | {plain(why)} |"


def page(suite: Suite) -> str:
    """Return a backend's part of the page."""
    found = rows(suite)
    head = ["| row | | by | the client loses | why |", "|---|---|---|---|---|"]
    parts = [f"## {suite.file.preset}\n", *([f"{suite.file.about.strip()}\n"] if suite.file.about else [])]
    return "\n".join([*parts, f"{sums(found)}\n", *head, *map(line, found), ""])


def sums(found: list[Row]) -> str:
    """Return how many rows there are of each kind, in a sentence."""
    counted = [
        (kind, sum(row.kind == kind for row in found)) for kind in (REPAIRED, TOLD, SERVED, PASSED_ON, IMPOSSIBLE)
    ]
    return f"{len(found)} rows: {', '.join(f'{number} {kind}' for kind, number in counted if number)}."


def suites(files: Iterable[Path]) -> Iterator[Suite]:
    """Yield the case files, run. One that fails ends the program."""
    for file in files:
        try:
            suite = run_suite(file, {})
        except PolicyFault as fault:
            sys.exit(str(fault))
        failed = [verdict.case for verdict in suite.verdicts if not verdict.is_good]
        if failed:
            sys.exit(f"{failed[0].place}: this case fails, so there is nothing to claim: run mendproxy test {file}")
        yield suite


def document() -> str:
    """Return the whole page."""
    return "\n".join([INTRODUCTION, *map(page, suites(sorted(CASES.glob("*.yaml"))))])


if __name__ == "__main__":
    sys.stdout.write(document())
