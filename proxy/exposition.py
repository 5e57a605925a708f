"""Numbers → Prometheus' text format, to the byte as its library for Python says them, which would take 1 MB.

    # HELP mendproxy_requests_total Requests answered.
    # TYPE mendproxy_requests_total counter
    mendproxy_requests_total{code="200",outcome="untouched",path="/v1/models"} 3.0

Source: Prometheus, "Exposition formats", text format 1.0.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from proxy.numbers import FAMILIES, Cells, Family, Numbers

CONTENT_TYPE: Final = "text/plain; version=1.0.0; charset=utf-8"

_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def as_text(numbers: Numbers) -> bytes:
    """Return the numbers in Prometheus' text format."""
    return "".join(f"{line}\n" for family in FAMILIES for line in _lines(family, numbers)).encode()


def _lines(family: Family, numbers: Numbers) -> Iterator[str]:
    name = f"mendproxy_{family.name}"
    yield f"# HELP {name} {family.text}"
    yield f"# TYPE {name} {family.kind}"
    if family.kind == "histogram":
        yield from _histogram(name, family.buckets, numbers.histograms[family.name])
        return
    series = (numbers.counters if family.kind == "counter" else numbers.gauges)[family.name]
    for values, value in series.items():
        yield f"{name}{_labels(family.labels, values)} {_number(value)}"


def _histogram(name: str, bounds: Sequence[float], cells: Cells) -> Iterator[str]:
    *below, count = accumulate(cells.counts)
    for bound, value in zip(bounds, below, strict=True):
        yield f'{name}_bucket{{le="{_number(bound)}"}} {_number(value)}'
    yield f'{name}_bucket{{le="+Inf"}} {_number(count)}'
    yield f"{name}_count {_number(count)}"
    yield f"{name}_sum {_number(cells.total)}"


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = sorted(zip(names, values, strict=True))
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in pairs) + "}" if pairs else ""


def _number(value: float) -> str:
    """Return a number as Go writes it: from a million on by its exponent."""
    text = repr(float(value))
    dot = text.find(".")
    if value <= 0 or dot <= 6:
        return text
    digits = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
    return f"{digits}e+{dot - 1:02d}"
