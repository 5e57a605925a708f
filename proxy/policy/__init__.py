"""The policy: an operator's YAML file, checked and compiled into one immutable value."""

from proxy.policy.effective import effective_text
from proxy.policy.load import load_policy
from proxy.policy.model import Backend, Limits, OnError, Policy, Rule, Timeouts
from proxy.policy.presets import preset_names, preset_text
from proxy.policy.repair import CompiledRepair
from proxy.policy.rules import compile_rule

__all__ = [
    "Backend",
    "CompiledRepair",
    "Limits",
    "OnError",
    "Policy",
    "Rule",
    "Timeouts",
    "compile_rule",
    "effective_text",
    "load_policy",
    "preset_names",
    "preset_text",
]
