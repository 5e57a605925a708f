"""The command `mendproxy`: arguments → calls → exit code.

Exit: 0 good · 1 what was checked is bad · 2 usage · 3 could not start.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click

from proxy import __version__
from proxy.engine import Request
from proxy.errors import Fault, PolicyFault
from proxy.explain import as_text, explain
from proxy.lessons import as_text as lessons_text
from proxy.lessons import read_lessons
from proxy.policy import Policy, effective_text, load_policy, preset_names, preset_text
from proxy.policy.units import parse_duration
from proxy.policy.yaml_text import decode_text
from proxy.repairs import REPAIRS

DEFAULT_POLICY = Path("config/policy.yaml")
DEFAULT_CASES = Path("config/tests")
DEFAULT_ADMIN_URL = "http://127.0.0.1:8081"
MAX_WORKERS = 256
DATA_PATHS = ("direct", "session")
LOG_LEVELS = ("debug", "info", "warning", "error")
REPORT_FORMATS = ("text", "json", "junit")


def _option(*names: str, **given: Any) -> Callable[[Any], Any]:
    """Return an option that can also be set by MENDPROXY_NAME."""
    name = names[-1].removeprefix("--").replace("-", "_").upper()
    return click.option(*names, envvar=f"MENDPROXY_{name}", show_default=True, show_envvar=True, **given)


def _file_option(name: str, about: str) -> Callable[[Any], Any]:
    """Return an option for a file that is read at start, which tells what is wrong with it."""
    return _option(name, default=None, metavar="FILE", help=about)


policy_option = _option(
    "-c", "--config", "config", type=click.Path(path_type=Path), default=DEFAULT_POLICY, help="The policy's file."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A reverse proxy that repairs, by a YAML policy, what an OpenAI-compatible backend would refuse."""


@main.command(name="serve")
@policy_option
@_option("--backend", default=None, metavar="URL", help="The address of the policy's first backend.")
@_option("--host", default="127.0.0.1", help="The address that clients are served on.")
@_option("--port", default=8080, type=click.IntRange(0, 65535), help="The port that clients are served on.")
@_option("--admin-host", default="127.0.0.1", help="The address of the admin port.")
@_option("--admin-port", default=8081, type=click.IntRange(0, 65535), help="The port for health and operation.")
@_file_option("--tls-cert", "The certificate, with its chain, by which clients are served by TLS.")
@_file_option("--tls-key", "The key of that certificate.")
@_file_option("--tls-client-ca", "Clients have to show a certificate of this CA.")
@_file_option("--backend-ca", "The CA of the backends' certificates, instead of the system's.")
@_file_option("--backend-cert", "The certificate that backends are shown.")
@_file_option("--backend-key", "The key of that certificate.")
@_option("--backend-insecure", is_flag=True, default=False, help="Verify no backend's certificate: for tests only.")
@_option("--workers", default=1, type=click.IntRange(1, MAX_WORKERS), help="Processes that serve on the port.")
@_option("--data-path", default="direct", type=click.Choice(DATA_PATHS), help="`session`: aiohttp's, to compare.")
@_option("--traces", default="off", type=click.Choice(["off", "otlp"]), help="Where spans go; takes the extra `otel`.")
@_option("--log-format", default="json", type=click.Choice(["json", "console"]), help="How a log line looks.")
@_option("--log-level", default="info", type=click.Choice(LOG_LEVELS), help="What is logged.")
@_option(
    "--learned",
    default=None,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file that keeps what refusals taught over restarts.",
)
@_option("--drain-grace", default="5s", help="How long new requests are still served after SIGTERM.")
@_option("--drain-timeout", default="10m", help="How long running answers may take to finish after that.")
def serve_command(
    config: Path,
    backend: str | None,
    host: str,
    port: int,
    admin_host: str,
    admin_port: int,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    backend_ca: str | None,
    backend_cert: str | None,
    backend_key: str | None,
    backend_insecure: bool,
    workers: int,
    data_path: Literal["direct", "session"],
    traces: Literal["off", "otlp"],
    log_format: str,
    log_level: str,
    learned: Path | None,
    drain_grace: str,
    drain_timeout: str,
) -> None:
    """Serve. SIGHUP reloads the policy and certificates, SIGTERM drains and ends, a second signal ends now."""
    # No other command has to wait until all of this is imported.
    from proxy.serving import Options, Tls, run

    tls = Tls(tls_cert, tls_key, tls_client_ca, backend_ca, backend_cert, backend_key, backend_insecure)
    if tls.misuse is not None:
        raise click.UsageError(tls.misuse)
    run(
        Options(
            config=str(config),
            backend=backend,
            host=host,
            port=port,
            admin_host=admin_host,
            admin_port=admin_port,
            workers=workers,
            data_path=data_path,
            traces=traces,
            tls=tls,
            log_format="console" if log_format == "console" else "json",
            log_level=log_level,
            learned=None if learned is None else str(learned),
            drain_grace_s=_seconds("--drain-grace", drain_grace),
            drain_timeout_s=_seconds("--drain-timeout", drain_timeout),
        )
    )


def _seconds(name: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=name) from error


@main.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--format", "form", default="text", type=click.Choice(["text", "json", "github"]), show_default=True)
@click.option("--deny-warnings", is_flag=True, help="Exit with 1 where there are only warnings.")
def check(files: tuple[str, ...], form: str, deny_warnings: bool) -> None:
    """Check policies: every fault as file:line:col: message. `-` is stdin. Opens no socket."""
    faults: list[Fault] = []
    warnings: list[Fault] = []
    good: list[str] = []
    for name in files:
        try:
            policy = _load(name)
        except PolicyFault as error:
            faults += error.faults
        else:
            warnings += policy.warnings
            good.append(f"{name}: good: {_summary(policy)}")
    _print_faults(faults, warnings, good, form)
    sys.exit(1 if faults or (deny_warnings and warnings) else 0)


def _load(name: str) -> Policy:
    try:
        text = decode_text(sys.stdin.buffer.read(), name) if name == "-" else None
        return load_policy(Path(name), environ=os.environ, text=text)
    except OSError as error:
        raise click.UsageError(f"{name}: {error.strerror or error}") from error


def _summary(policy: Policy) -> str:
    rules = {rule.id for backend in policy.backends for rule in backend.rules}
    backends = len(policy.backends)
    return f"{backends} backend{'s' * (backends != 1)}, {len(rules)} rule{'s' * (len(rules) != 1)}"


def _print_faults(faults: list[Fault], warnings: list[Fault], good: list[str], form: str) -> None:
    found = [("error", fault) for fault in faults] + [("warning", fault) for fault in warnings]
    if form == "json":
        rows = [
            {"severity": kind, "file": f.file, "line": f.line, "column": f.column, "message": f.message}
            for kind, f in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    for kind, fault in found:
        if form == "github":
            file = _escaped(fault.file).replace(":", "%3A").replace(",", "%2C")
            click.echo(f"::{kind} file={file},line={fault.line},col={fault.column}::{_escaped(fault.message)}")
        else:
            click.echo(str(fault) if kind == "error" else f"{fault} (warning)")
    if form == "text":
        for line in good:
            click.echo(line)


def _escaped(text: str) -> str:
    """Return text as a workflow command of GitHub's can hold it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


@main.command(name="test")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE|DIR…]")
@click.option("--coverage", is_flag=True, help="Fail where a rule of the file never fired or was never passed over.")
@click.option("--run", "chosen", metavar="REGEX", help="Only the cases whose name it is found in.")
@click.option("--format", "form", default="text", type=click.Choice(REPORT_FORMATS), show_default=True)
def test_command(paths: tuple[Path, ...], coverage: bool, chosen: str | None, form: str) -> None:
    """Run cases against their policies, of config/tests where none is named; `-` is stdin. Opens no socket."""
    if coverage and chosen is not None:
        raise click.UsageError("--coverage is of all cases: it can't be had with --run")
    # What serves does without it.
    from proxy.case_runs import find_files, run_cases
    from proxy.policy_tests.report import FORMATS

    told = run_cases(find_files(paths or (DEFAULT_CASES,)), _regex(chosen), coverage)
    click.echo(FORMATS[form](told), nl=False)
    sys.exit(0 if told.is_good else 1)


def _regex(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is no regular expression: {error}", param_hint="--run") from error


@main.command(name="explain")
@policy_option
@click.option("--path", default="/v1/chat/completions", show_default=True, help="The path that the request is for.")
@click.option("--method", default="POST", show_default=True)
@click.option("--header", "said", multiple=True, metavar="NAME: VALUE", help="A header of the request; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.argument("request_file", default="-", metavar="[REQUEST.json|-]")
def explain_command(
    config: Path, path: str, method: str, said: tuple[str, ...], as_json: bool, request_file: str
) -> None:
    """Tell which rules fire for a request and why the others don't, the bodies that go upstream, the answer."""
    policy = _policy(config)
    route, _, query = path.partition("?")
    told = explain(Request(method, route, query, [_header(line) for line in said], _read(request_file)), policy)
    click.echo(json.dumps(told, indent=2, ensure_ascii=False) if as_json else as_text(told), nl=as_json)


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise click.BadParameter(f"{line!r} is not NAME: VALUE", param_hint="--header")
    return name.strip(), value.strip()


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise click.UsageError(f"{name}: {error.strerror or error}") from error


def _policy(config: Path) -> Policy:
    """Return the policy, or end with 1 and every fault of it."""
    try:
        return _load(str(config))
    except PolicyFault as error:
        click.echo("\n".join(map(str, error.faults)), err=True)
        sys.exit(1)


@main.command()
@policy_option
def show(config: Path) -> None:
    """Print the effective policy: presets unfolded, defaults filled in, secrets hidden."""
    click.echo(effective_text(_policy(config)), nl=False)


@main.command()
@click.argument("name", required=False)
def repairs(name: str | None) -> None:
    """List the repairs, or tell all about one."""
    if name is None:
        width = max(map(len, REPAIRS))
        for card in REPAIRS.values():
            click.echo(f"{card.name.ljust(width)}  {card.doc.strip().splitlines()[0]}")
    elif name in REPAIRS:
        click.echo(REPAIRS[name].doc.strip())
    else:
        raise click.UsageError(f"there is no repair {name!r}; `mendproxy repairs` lists them")


@main.command()
@click.argument("name", required=False)
def presets(name: str | None) -> None:
    """List the presets, or print one."""
    if name is None:
        for known in preset_names():
            click.echo(known)
    elif name in preset_names():
        click.echo(preset_text(name), nl=False)
    else:
        raise click.UsageError(f"there is no preset {name!r}; `mendproxy presets` lists them")


@main.command(name="schema")
def schema_command() -> None:
    """Print the JSON Schema of a policy file, for editors."""
    # No other command has a use for it.
    from proxy.policy.schema_json import schema_text

    click.echo(schema_text(), nl=False)


@main.command()
@click.argument("url", default=DEFAULT_ADMIN_URL, envvar="MENDPROXY_ADMIN_URL")
def health(url: str) -> None:
    """Ask the admin port at URL whether the proxy is ready; exit with 0 if it is, else with 1."""
    # No other command asks anybody.
    import http.client
    import urllib.error
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url.rstrip('/')}/readyz?verbose", timeout=5) as answer:
            click.echo(answer.read().decode(), nl=False)
    except urllib.error.HTTPError as error:
        click.echo(error.read().decode(errors="replace"), nl=False)
        sys.exit(1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        click.echo(f"mendproxy: {url}: {getattr(error, 'reason', error)}", err=True)
        sys.exit(1)


@main.command(name="learned")
@click.argument("file", type=click.Path(path_type=Path))
def learned_command(file: Path) -> None:
    """Print what refusals taught, kept in FILE, as rules for a policy."""
    try:
        click.echo(lessons_text(read_lessons(file)), nl=False)
    except PolicyFault as error:
        click.echo("\n".join(map(str, error.faults)), err=True)
        sys.exit(1)
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror or error}") from error


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(f"mendproxy {__version__}")
