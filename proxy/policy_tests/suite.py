"""Case files on disk → their policies loaded, their cases run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proxy.errors import Fault, PolicyFault
from proxy.matching import did_you_mean
from proxy.policy import Policy, load_policy, preset_names
from proxy.policy.yaml_text import decode_text
from proxy.policy_tests.cases import Case, CaseFile, read_cases
from proxy.policy_tests.expectations import complaints
from proxy.policy_tests.trial import Outcome, run

STDIN: Final = Path("-")

# A name that no resolver knows (RFC 6761 §6.4): no case opens a socket.
_NOWHERE: Final = "http://backend.invalid"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A case, what came of it, and what of that was not expected."""

    case: Case
    outcome: Outcome
    complaints: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Whether all came as expected."""
        return not self.complaints


@dataclass(frozen=True, slots=True)
class Suite:
    """A case file that was run. The policy's own rules have `policy_file` in their places; `key` names the policy."""

    file: CaseFile
    policy: Policy
    policy_file: str
    key: str
    verdicts: tuple[Verdict, ...]


def case_files(paths: list[Path]) -> list[Path]:
    """Return the files that are named, and all YAML files in and below the directories.

    Raises: FileNotFoundError.
    """
    return [file for path in paths for file in _files(path)]


def _files(path: Path) -> list[Path]:
    if path == STDIN:
        return [path]
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.suffix in (".yaml", ".yml") and file.is_file())
    if not path.exists():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    return [path]


def run_suite(
    path: Path, environ: Mapping[str, str], chosen: re.Pattern[str] | None = None, source: bytes | None = None
) -> Suite:
    """Return the cases of a file, or of `source` under its name, run; only those whose name `chosen` is found in.

    Raises: PolicyFault with every fault of the file or of its policy, OSError where it can't be read.
    """
    file = read_cases(decode_text(path.read_bytes() if source is None else source, str(path)), str(path))
    policy, policy_file, key = _policy(file, path.parent, dict(environ) | file.env)
    faults = list(_unknown_rules(file, policy))
    if faults:
        raise PolicyFault(faults)
    cases = [case for case in file.cases if chosen is None or chosen.search(case.name)]
    return Suite(file, policy, policy_file, key, tuple(_verdict(case, policy) for case in cases))


def _verdict(case: Case, policy: Policy) -> Verdict:
    outcome = run(case, policy)
    return Verdict(case, outcome, tuple(complaints(case, outcome)))


def _policy(file: CaseFile, directory: Path, environ: Mapping[str, str]) -> tuple[Policy, str, str]:
    if file.policy is None:
        return _preset(file, environ)
    path = directory / file.policy
    shown = os.path.normpath(path)
    try:
        text = decode_text(path.read_bytes(), shown)
    except OSError as error:
        fault = file.document.fault(("policy",), f"{shown} can't be read: {error.strerror or error}")
        raise PolicyFault([fault]) from error
    return load_policy(shown, environ=environ, text=text), shown, str(path.resolve())


def _preset(file: CaseFile, environ: Mapping[str, str]) -> tuple[Policy, str, str]:
    name = file.preset or ""
    if name not in preset_names():
        message = f'unknown preset "{name}"{did_you_mean(name, preset_names())}'
        raise PolicyFault([file.document.fault(("preset",), message)])
    text = f"version: 1\nbackends: {{{name}: {{url: '{_NOWHERE}', presets: [{name}]}}}}\n"
    return load_policy(f"preset {name}", environ=environ, text=text), f"presets/{name}.yaml", f"preset {name}"


def _unknown_rules(file: CaseFile, policy: Policy) -> Iterator[Fault]:
    """Yield a fault for each rule that a case names and the policy doesn't have."""
    known = {rule.id for backend in policy.backends for rule in backend.rules}
    for index, entry in enumerate(file.entries):
        if isinstance(entry, Case):
            for place, rule in _named_rules(entry):
                if rule not in known:
                    message = f'the policy has no rule "{rule}"{did_you_mean(rule, known)}'
                    yield file.document.fault(("tests", index, "expect", *place), message)


def _named_rules(case: Case) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for key in ("rules", "observed"):
        for index, rule in enumerate(getattr(case.expect, key) or ()):
            yield (key, index), rule
    for key in ("loses", "warns"):
        for rule in getattr(case.expect, key):
            yield (key, rule), rule
