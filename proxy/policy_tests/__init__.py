"""An operator's own cases: what a policy must make of a request, run without a socket.

case file → cases ─┬─ trial (engine.plan, replan) → outcome ─┬─ differences → verdict
            policy ┘                                         └─ coverage: rules never fired, never passed over
"""

from proxy.policy_tests.cases import Case, CaseFile, Impossible, read_cases
from proxy.policy_tests.coverage import Gap, find_gaps
from proxy.policy_tests.report import Report
from proxy.policy_tests.suite import STDIN, Suite, Verdict, case_files, run_suite
from proxy.policy_tests.trial import Outcome

__all__ = [
    "STDIN",
    "Case",
    "CaseFile",
    "Gap",
    "Impossible",
    "Outcome",
    "Report",
    "Suite",
    "Verdict",
    "case_files",
    "find_gaps",
    "read_cases",
    "run_suite",
]
