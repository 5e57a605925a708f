"""Print docs/presets.md: for each preset what it is for and all of its rules. `make gen` puts it there."""

import sys
from collections.abc import Iterator
from typing import Any

from proxy.matching import flow
from proxy.policy import Rule, load_policy, preset_names, preset_text
from proxy.policy.yaml_text import parse_yaml

INTRODUCTION = """# Presets

A preset is a pack of rules for one kind of backend: `presets: [sglang]` in a backend's entry runs them before the
policy's own. A rule of the policy with a preset rule's full id (`sglang/top-p-zero`) replaces it, `disable` switches it
off, and `mendproxy presets NAME` prints the pack as it is. Which rows of a backend's catalogue the rules see to is told
in [coverage.md](coverage.md), what the repairs do in [repairs.md](repairs.md).

Rules run from top to bottom. One that is *reactive* waits for the backend to refuse, and then has the proxy ask again;
without a `when` a rule is for every request to the two completion endpoints.

<!-- Made from the presets by `make gen`: edit those. -->
"""


def document() -> str:
    """Return the whole page."""
    names = preset_names()
    contents = "\n".join(f"- [{name}](#{name}): {about(name)}" for name in names)
    return "\n".join([INTRODUCTION, contents + "\n", *map(page, names)])


def about(name: str) -> str:
    """Return which backend the preset is for."""
    return str(parse_yaml(preset_text(name), name).value["about"]).strip().rstrip(".")


def page(name: str) -> str:
    """Return a preset's part of the page."""
    raw = parse_yaml(preset_text(name), name).value
    rows = [row(rule, written) for rule, written in zip(rules(name), raw["rules"], strict=True)]
    head = ["| rule | why | when | repairs | the client loses |", "|---|---|---|---|---|"]
    return "\n".join([f"## {name}\n", f"{about(name)}. {len(rows)} rules.\n", *head, *rows, ""])


def rules(name: str) -> tuple[Rule, ...]:
    """Return the preset's compiled rules."""
    text = f"version: 1\nbackends: {{backend: {{url: 'http://backend.invalid', presets: [{name}]}}}}\n"
    return load_policy(name, environ={}, text=text).backends[0].rules


def row(rule: Rule, written: dict[str, Any]) -> str:
    """Return the rule's line of the table."""
    kind = " (reactive)" if rule.on_error else ""
    repairs = "<br>".join(code(flow(entry)[1:-1]) for entry in written["repair"])
    why = " ".join((rule.about or "").split())
    cells = [f"`{rule.id}`{kind}", plain(why), "<br>".join(conditions(written)), repairs, plain(loses(rule))]
    return f"| {' | '.join(cells)} |"


def conditions(written: dict[str, Any]) -> Iterator[str]:
    """Yield what a request must be like, and what the backend must have answered."""
    if written.get("when"):
        yield code(flow(written["when"])[1:-1])
    if written.get("on_error"):
        yield f"refused with {code(flow(written['on_error'])[1:-1])}"


def loses(rule: Rule) -> str:
    """Return what a client loses, in the rule's words or else in the repairs'."""
    if rule.loses is not None:
        return rule.loses
    if {repair.name for repair in rule.repairs} == {"reject"}:
        return "the request is refused"
    told = [repair.card.loses for repair in rule.repairs if not repair.card.is_exact]
    return "; ".join(dict.fromkeys(filter(None, told))) or "nothing"


def code(text: str) -> str:
    """Return the text as code that can stand in a table."""
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text.replace('|', chr(92) + '|')}{pad}{fence}"


def plain(text: str) -> str:
    """Return prose that can stand in a table and is read as it is."""
    for character in ("\\", "|", "*", "_", "<", "`"):
        text = text.replace(character, f"\\{character}")
    return text


if __name__ == "__main__":
    sys.stdout.write(document())
