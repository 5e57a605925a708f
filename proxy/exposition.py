"""Numbers → Prometheus' text format, by its own library."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from proxy.numbers import FAMILIES, Cells, Family, Numbers

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


def as_text(numbers: Numbers) -> bytes:
    """Return the numbers in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(numbers))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES:
            yield _metric(family, self._numbers)


def _metric(family: Family, numbers: Numbers) -> Metric:
    name = f"mendproxy_{family.name}"
    if family.kind == "histogram":
        cells = numbers.histograms[family.name]
        histogram = HistogramMetricFamily(name, family.text)
        histogram.add_metric([], _cumulated(family.buckets, cells), cells.total)
        return histogram
    if family.kind == "counter":
        counter = CounterMetricFamily(name, family.text, labels=family.labels)
        for labels, value in numbers.counters[family.name].items():
            counter.add_metric(labels, value)
        return counter
    gauge = GaugeMetricFamily(name, family.text, labels=family.labels)
    for labels, value in numbers.gauges[family.name].items():
        gauge.add_metric(labels, value)
    return gauge


def _cumulated(bounds: tuple[float, ...], cells: Cells) -> list[tuple[str, float]]:
    names = [*map(floatToGoString, bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(cells.counts)), strict=True))
