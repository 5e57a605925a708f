"""docs/operating.md says what there is: flags, paths, metrics, log fields, events, commands and files."""

import re
from pathlib import Path

import click
from prometheus_client.parser import text_string_to_metric_families

from proxy.admin import AdminPort
from proxy.cli import main, serve_command
from proxy.metrics import Metrics

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "operating.md").read_text()
POLICY = "version: 1\nbackends: {main: {url: standin://sglang}}\n"
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def table(heading, first):
    """Return the rows of the table below a heading whose first column is named `first`."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    [rows] = [found for found in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE) if found.startswith(f"| {first} |")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()[2:]]


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


def test_every_flag_of_serve_is_in_the_table_with_its_variable_and_default():
    told = {
        (*quoted(flag), *quoted(variable), *quoted(default)) for flag, variable, default, _ in table("Start", "flag")
    }
    there = {
        (
            *sorted(option.opts, reverse=False),
            option.envvar,
            *([str(option.default)] if option.default is not None else []),
        )
        for option in serve_command.params
        if isinstance(option, click.Option) and not option.hidden
    }
    assert told == there


def test_every_path_of_the_admin_port_is_in_the_table(tmp_path):
    told = {word.removeprefix("POST ") for row in table("The admin port", "path") for word in quoted(row[0])}
    app = AdminPort.app(AdminPort.__new__(AdminPort))
    assert told == {resource.canonical for resource in app.router.resources()}


def test_every_metric_is_in_the_table_with_its_kind_and_labels():
    told = {(*quoted(name), kind) for name, kind, *_ in table("Metrics", "name")}
    families = text_string_to_metric_families(Metrics().text().decode())
    assert told == {(family.name + "_total" * (family.type == "counter"), family.type) for family in families}


def test_every_field_of_a_requests_log_line_is_in_the_table(serving, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    with serving(policy) as proxy:
        assert proxy.post(HELLO)[0] == 200
        line = proxy.until("request")
    told = {name for row in table("Log", "field") for name in quoted(row[0])}
    assert told | {"event", "level", "timestamp"} == line.keys()


def test_every_event_that_the_code_logs_is_in_the_table():
    source = "".join(path.read_text() for path in (ROOT / "proxy").glob("*.py"))
    logged = set(re.findall(r'(?:\blog\.\w+|_tell)\(\s*(?:logging\.[^"()]*,\s*)?"([\w.]+)"', source))
    assert {name for row in table("Log", "event") for name in quoted(row[0])} == logged - {"request"}


def test_every_command_that_is_named_exists():
    named = re.findall(
        r"\bmendproxy ([a-z]+)\b(?: (--[a-z-]+))?", " ".join(re.findall(r"`[^`]+`|```.*?```", PAGE, re.DOTALL))
    )
    calls = [(main.commands[name], flag) for name, flag in named if name in main.commands]
    assert len(calls) > 8
    flags = [(command.name, flag) for command, flag in calls if flag]
    known = {(command.name, flag) for command, _ in calls for option in command.params for flag in option.opts}
    assert set(flags) <= known


def test_every_file_and_every_section_that_is_linked_is_there():
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    }
    links = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert {link for link in links if link.startswith("#") and link[1:] not in anchors} == set()
    assert [link for link in links if not link.startswith("#") and not (ROOT / "docs" / link).resolve().exists()] == []


def test_every_variable_that_is_named_is_heard():
    heard = {option.envvar for command in main.commands.values() for option in command.params if option.envvar}
    deployed = set(re.findall(r"\$\{(\w+)", (ROOT / "config" / "policy.yaml").read_text()))
    assert set(re.findall(r"\bMENDPROXY_[A-Z_]+\b", PAGE)) <= heard | deployed
