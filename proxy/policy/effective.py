"""The policy as it works: presets unfolded into rules, defaults filled in; YAML that loads again.

What came from a variable is shown as `${VAR}`, and secrets that stand in the file are hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

from proxy.matching import DEFAULT_PATHS, Expanded, compile_globs
from proxy.policy import schema
from proxy.policy.model import Policy
from proxy.policy.packs import Arrangement, Written
from proxy.policy.scalars import BadScalar, read_scalar

_HIDDEN: Final = "***"


def effective_text(policy: Policy) -> str:
    """Return the effective policy as YAML text."""
    return yaml.dump(dict(policy.effective), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def effective_values(file: schema.PolicyFile, raw: Mapping[str, Any], arrangement: Arrangement) -> dict[str, Any]:
    """Return the effective policy as the values of a policy file without presets."""
    filled = file.model_dump(by_alias=True, exclude={"rules"}, exclude_none=True)
    values: dict[str, Any] = _as_written(filled, raw)
    for backend in values["backends"].values():
        backend["presets"] = []
        if "api_key" in backend:
            backend["api_key"] = _hide(backend["api_key"])
    values["auth"]["keys"] = [_hide(key) for key in values["auth"]["keys"]]
    values["disable"] = []
    values["rules"] = _rules(file, arrangement)
    return values


def _as_written(filled: Any, raw: Any) -> Any:
    """Return the filled values, with variables where the raw ones have some."""
    if isinstance(filled, dict) and isinstance(raw, dict):
        return {key: _as_written(item, raw.get(key)) for key, item in filled.items()}
    if isinstance(filled, list) and isinstance(raw, list):
        return [_as_written(item, written) for item, written in zip(filled, raw, strict=True)]
    return raw.source if isinstance(raw, Expanded) else filled


def _hide(secret: str) -> str:
    """Return a secret as it may be shown: a variable by its name, without a default that could be one."""
    is_variable = secret.startswith("${") and secret.endswith("}") and secret.count("${") == 1
    if is_variable and secret.partition(":-")[2] in ("", "}"):
        return secret
    return f"{secret.partition(':-')[0]}:-{_HIDDEN}}}" if is_variable else _HIDDEN if secret else ""


def _rules(file: schema.PolicyFile, arrangement: Arrangement) -> list[Any]:
    """Return all rules that run, a preset's only for the backends that have the preset."""
    users: dict[str, list[str]] = {}
    written: dict[str, Written] = {}
    for name, backend in file.backends.items():
        for each in arrangement.for_backend(backend.presets):
            users.setdefault(each.rule.id, []).append(name)
            written.setdefault(each.rule.id, each)
    own = [each.rule.id for each in arrangement.own]
    order = [rule_id for rule_id in written if rule_id not in own] + own
    rules = [_rule(written[rule_id], users[rule_id], list(file.backends)) for rule_id in order]
    return [rule for rule in rules if rule]


def _rule(written: Written, users: list[str], backends: list[str]) -> dict[str, Any] | None:
    """Return the rule under its full id, None where it is for none of the backends."""
    raw = _sources(written.raw)
    when = raw.get("when") or {}
    if users != backends:
        _, matches = compile_globs(when.get("backend", "*"))
        when = {**when, "backend": [name for name in users if matches(name)]}
        if not when["backend"]:
            return None
    when = when if "path" in when else {"path": list(DEFAULT_PATHS), **when}
    filled = {**raw, "id": written.rule.id, "when": when, "mode": written.rule.mode}
    return {key: filled[key] for key in schema.Rule.model_fields if filled.get(key) is not None}


def _sources(raw: Any) -> Any:
    if isinstance(raw, dict):
        return {key: _sources(item) for key, item in raw.items()}
    if isinstance(raw, list):
        return [_sources(item) for item in raw]
    return raw.source if isinstance(raw, Expanded) else raw


class _Dumper(yaml.SafeDumper):
    """Writes what YAML 1.2 reads as the same values, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if _is_plain(text) else "'")


def _is_plain(text: str) -> bool:
    try:
        return isinstance(read_scalar(text, is_plain=True), str)
    except BadScalar:
        return False


_Dumper.add_representer(str, _string)
