"""Whether a rule is for a request: tests on values, matchers on requests, each compiled once into a closure.

raw YAML value → compile_test → (value, root) → bool
raw `when`     → compile_matcher → facts of a request → bool, and for `explain` the first check that failed
"""

from proxy.matching.checks import Check, Facts, Group, Late
from proxy.matching.clues import Clue
from proxy.matching.globs import compile_globs
from proxy.matching.matcher import DEFAULT_PATHS, Matcher, compile_matcher
from proxy.matching.operators import OPERATORS, Test, compile_test
from proxy.matching.problems import KEY, BadTest, Problem, did_you_mean, gather, kind_of, shown
from proxy.matching.regexes import compile_regex
from proxy.matching.words import Expanded, flow

__all__ = [
    "DEFAULT_PATHS",
    "KEY",
    "OPERATORS",
    "BadTest",
    "Check",
    "Clue",
    "Expanded",
    "Facts",
    "Group",
    "Late",
    "Matcher",
    "Problem",
    "Test",
    "compile_globs",
    "compile_matcher",
    "compile_regex",
    "compile_test",
    "did_you_mean",
    "flow",
    "gather",
    "kind_of",
    "shown",
]
