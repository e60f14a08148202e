"""Of all candidates the best: thousands by a first look (``screen``), the best tens of those by
closed forms of queues, and the best of those by simulation (``judge``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import IntArray
from simulation.search.fronts import fronts
from simulation.search.judge import by_closed_forms, by_simulation
from simulation.search.screen import decoding, prefilling, speeds_of, together
from simulation.search.table import Table, table_of
from simulation.search.values import Candidate, Instance, Rated, Requests

CLOSED = 24  # of the best by the first look, that closed forms judge
SPARE = 1.2  # times as many as are asked for go on to be simulated: ranks change a little
LOOKED_THROUGH = 20_000  # of the best by the first look, for CLOSED that are not alike

MISSES_QUEUES = "misses the limits once requests queue"

ReportProgress = Callable[[float, str], None]
Kind = tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """``best`` come first; ``by_gpu`` is the best of each GPU type, by closed forms where it is not
    among ``best``. ``latency`` and ``speed`` are the fronts of cost against TTFT and against TBT,
    within the limits. ``ruled_out`` counts candidates by reason, of all ``evaluated``."""

    best: tuple[Rated, ...]
    by_gpu: tuple[Rated, ...]
    latency: tuple[Rated, ...]
    speed: tuple[Rated, ...]
    evaluated: int
    ruled_out: dict[str, int]


def search(
    instances: Sequence[Instance],
    requests: Requests,
    *,
    top: int,
    seed: int = 0,
    report: ReportProgress = lambda done, what: None,
) -> SearchResult:
    """The ``top`` deployments by cost for the requests wanted, those without a price after them by
    requests per GPU, each simulated. Of deployments that are alike (``kind_of``) the best is one of
    them."""
    if not instances:
        return SearchResult((), (), (), (), 0, {})
    report(0.0, "Looking at every deployment")
    speeds = speeds_of(instances, requests)
    complete = together(speeds, requests)
    first = prefilling(instances, requests.part("prefill"))
    second = decoding(speeds, instances, requests.part("decode"))
    table, ruled_out, evaluated = table_of(instances, requests, complete, first, second)
    report(0.3, "Queues of the best")
    chosen = _chosen(table, instances, requests, max(CLOSED, int(np.ceil(SPARE * top))))
    judged = [by_closed_forms(candidate, requests) for candidate in chosen]
    closed = sorted(_rated(judged), key=lambda rated: cost(rated, requests))
    best: list[Rated] = []
    simulated = closed[: int(np.ceil(SPARE * top))]
    for done, rated in enumerate(simulated):
        report(0.5 + 0.4 * done / len(simulated), "Simulating the best")
        best += _rated([by_simulation(rated.candidate, requests, rated.rate, seed)])
    dropped = len(judged) - len(closed) + len(simulated) - len(best)
    if dropped:
        ruled_out[MISSES_QUEUES] += dropped
    best.sort(key=lambda rated: cost(rated, requests))
    report(0.9, "What costs how much at which latency")
    latency, speed = fronts(table, complete, second, instances, requests, best)
    return SearchResult(
        best=tuple(best[:top]),
        by_gpu=_by_gpu([*best, *closed[len(simulated) :]], requests),
        latency=latency,
        speed=speed,
        evaluated=evaluated,
        ruled_out=dict(ruled_out),
    )


def cost(rated: Rated, requests: Requests) -> tuple[float, float]:
    """What candidates are ranked by, less being better: dollars of a request, or of an hour of as
    many as carry the rate wanted (infinite without a price), then GPUs per request."""
    usd, each = rated.candidate.usd_per_hour, 1.0 / rated.rps_per_gpu
    if not np.isfinite(usd):
        return float("inf"), each
    many = 1.0 / rated.rate if requests.rps is None else copies(rated.rate, requests.rps)
    return usd * many, each


def copies(rate: float, rps: float) -> int:
    """Of a deployment that carries ``rate``, to carry ``rps``: each by itself."""
    return max(1, int(np.ceil(rps / rate - 1e-9)))


def kind_of(candidate: Candidate) -> Kind:
    """What a planner takes for one deployment: the GPUs of an instance, but not how a layer is
    divided among them."""
    decode, first = candidate.decode, candidate.prefill
    size = (0, 0, 0) if first is None else (first.gpus, candidate.prefills, candidate.decodes)
    return (decode.gpu.name, decode.where.weights, decode.engines, decode.gpus, *size)


def _rated(judged: Sequence[Rated | None]) -> list[Rated]:
    return [rated for rated in judged if rated is not None]


def _ranked(table: Table, requests: Requests) -> IntArray:
    """Rows by ``cost``, the cheapest first."""
    many = 1.0 / table.rate
    if requests.rps is not None:
        many = np.maximum(np.ceil(requests.rps / table.rate - 1e-9), 1.0)
    paid = table.usd_per_hour * many
    return np.lexsort((table.gpus / table.rate, np.where(np.isfinite(paid), paid, np.inf)))


def _chosen(
    table: Table, instances: Sequence[Instance], requests: Requests, most: int
) -> list[Candidate]:
    """For closed forms: the best that are not alike, and the best of every GPU type."""
    order = _ranked(table, requests)
    by_kind: dict[Kind, Candidate] = {}
    for row in order[:LOOKED_THROUGH].tolist():
        candidate = table.row(row, instances)
        by_kind.setdefault(kind_of(candidate), candidate)
        if len(by_kind) >= most:
            break
    types = np.array([instance.gpu.name for instance in instances])[table.decode[order]]
    for row in np.unique(types, return_index=True)[1].tolist():
        candidate = table.row(int(order[row]), instances)
        by_kind.setdefault(kind_of(candidate), candidate)
    return list(by_kind.values())


def _by_gpu(rated: Sequence[Rated], requests: Requests) -> tuple[Rated, ...]:
    """The best of each GPU type, the cheapest type first."""
    by_gpu: dict[str, Rated] = {}
    for cheapest in sorted(rated, key=lambda rated: cost(rated, requests)):
        by_gpu.setdefault(cheapest.candidate.decode.gpu.name, cheapest)
    return tuple(by_gpu.values())
