"""List the metrics of serving engines by quantity, as ``engines.toml`` declares them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any


class Kind(Enum):
    """The type of a metric, and how it is combined over replicas."""

    COUNTER = "counter"
    GAUGE_SUM = "sum of gauges"  # over replicas
    GAUGE_MEAN = "mean of gauges"
    HISTOGRAM = "histogram"
    MEAN = "mean of a histogram"  # sum / count: exact, while buckets are coarse


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity and the names under which an engine reports it."""

    what: str  # a column of samples, from AMOUNTS, GAUGES or COUNTED
    kind: Kind
    names: tuple[str, ...]

    def present(self, on_server: frozenset[str]) -> Metric:
        """Return the metric with only those of its names that are ``on_server``."""
        suffix = {Kind.HISTOGRAM: "_bucket", Kind.MEAN: "_sum"}.get(self.kind, "")
        names = tuple(name for name in self.names if name + suffix in on_server)
        return Metric(self.what, self.kind, names)


@dataclass(frozen=True, slots=True)
class Engine:
    """A serving engine, or a front end that forwards to engines, with its metrics."""

    name: str
    title: str
    model_label: str  # "": the engine has none
    metrics: tuple[Metric, ...]
    signs: tuple[str, ...]  # prefixes of metric names that only this engine has
    source: str
    front: bool = False  # it only forwards requests
    leave_out: tuple[tuple[str, str], ...] = ()  # label and value of series that are not counted


def _engine(name: str, declared: dict[str, Any]) -> Engine:
    """Return an engine of ``engines.toml`` with its metrics, in the order of their declaration."""
    counters, gauges, histograms = (
        {quantity: _names(text) for quantity, text in declared.pop(table, {}).items()}
        for table in ("counters", "gauges", "histograms")
    )
    metrics = [Metric(quantity, Kind.COUNTER, names) for quantity, names in counters.items()]
    for quantity, names in gauges.items():
        kind = Kind.GAUGE_MEAN if quantity == "kv_use" else Kind.GAUGE_SUM
        metrics.append(Metric(quantity, kind, names))
    metrics += [Metric(quantity, Kind.HISTOGRAM, names) for quantity, names in histograms.items()]
    if "tbt_s" in histograms:
        metrics.append(Metric("tbt_mean_s", Kind.MEAN, histograms["tbt_s"]))
    declared["signs"] = tuple(declared["signs"])
    declared["leave_out"] = tuple(map(tuple, declared.get("leave_out", ())))
    return Engine(name, metrics=tuple(metrics), **declared)


def _names(text: str) -> tuple[str, ...]:
    """Return the names in a text; those with a colon also as Ray writes them, without it."""
    names = text.split()
    return (*names, *(name.replace(":", "_") for name in names if ":" in name))


ENGINES = tuple(
    _engine(name, declared)
    for name, declared in tomllib.loads(
        (Path(__file__).parent / "engines.toml").read_text(encoding="utf-8")
    ).items()
)
# Power of all GPUs that the exporter sees, whatever runs on them.
POWER = Metric("power_w", Kind.GAUGE_SUM, ("DCGM_FI_DEV_POWER_USAGE",))


def engines_present(on_server: frozenset[str], engine: str = "auto") -> tuple[Engine, ...]:
    """Return the engines to read from a server, each with the metrics that the server has.

    ``on_server`` are the names of the server's metrics. With ``engine`` "auto", all engines that
    count requests are returned. If none does, it is the first front end (router or gateway) that
    does.
    """
    engines = []
    for candidate in ENGINES:
        if engine not in ("auto", candidate.name):
            continue
        declared = (metric.present(on_server) for metric in candidate.metrics)
        metrics = tuple(metric for metric in declared if metric.names)
        counts_requests = any(metric.what == "requests" for metric in metrics)
        names = [name for metric in metrics for name in metric.names]
        has_sign = any(name.startswith(candidate.signs) for name in names)
        if counts_requests and (has_sign or engine == candidate.name):
            engines.append(replace(candidate, metrics=metrics))
    behind_front_ends = [candidate for candidate in engines if not candidate.front]
    return tuple(behind_front_ends or engines[:1])
