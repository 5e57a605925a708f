"""The proxy's policy, in editions that come one after another, good ones and faulty ones."""

from __future__ import annotations

from typing import Final

from soak.scripts import MODEL, NOBODY

_GOOD: Final = """\
# Edition {edition}
version: 1
backends:
  main:
    url: http://127.0.0.1:{port}
    models: [{model}]
    max_concurrency: {max_concurrency}
    timeouts: {{connect: 5s, first_content: {first_content_ms}ms, idle: {idle_ms}ms}}
  nobody: {{url: "http://127.0.0.1:{closed_port}", models: [{nobody}]}}
keep_alive: {keep_alive_ms}ms
rules:
  - id: meta-info-streamed
    when: {{body: {{stream: true, return_meta_info: true}}}}
    repair: [{{stream: false}}]
  - id: collected
    when: {{body: {{collect: true}}}}
    repair: [{{drop: [collect]}}, {{stream: true}}]
  - id: fanned-out
    when: {{body: {{n: {{gt: 1}}}}}}
    repair: [{{fan_out: {{max: 8}}}}]
  - id: refused-dropped
    on_error: {{status: [400], message: "Unsupported parameter: '(?P<field>[a-z]+)'"}}
    repair: [{{drop: ["{{field}}"]}}]
"""
_FAULTY: Final = (
    "version: 1\nrules: [\n",
    "version: 1\nbackends: {main: {url: 'http://127.0.0.1:1'}}\nrules: [{id: a, when: {}, repair: [{dorp: [x]}]}]\n",
    "version: 1\nbackends: {}\n",
    "",
)


def good(edition: int, port: int, closed_port: int, pace: float) -> str:
    """Return a policy that all scripts can be served by. `closed_port`: where nobody listens."""
    return _GOOD.format(
        edition=edition,
        port=port,
        closed_port=closed_port,
        model=MODEL,
        nobody=NOBODY,
        max_concurrency=(0, 5000)[edition % 2],
        keep_alive_ms=int((1000, 1500)[edition // 2 % 2] * pace),
        first_content_ms=int(2000 + 12_000 * pace),
        idle_ms=int(1000 + 4000 * pace),
    )


def faulty(edition: int) -> str:
    """Return a policy that nobody can be served by."""
    return _FAULTY[edition % len(_FAULTY)]
