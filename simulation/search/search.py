"""Find the best of thousands of candidates.

A fast screen ranks all of them (``screen``). Closed forms of queues judge some tens of the best.
Simulation judges the best of those (``judge``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import IntArray
from simulation.search.cost_fronts import cost_fronts
from simulation.search.evaluation import rate_by_closed_forms, rate_by_simulation
from simulation.search.screen import aggregated_loads, decode_loads, prefill_loads, speeds_of
from simulation.search.table import Table, table_of
from simulation.search.values import Candidate, Instance, Rated, Requests

CLOSED = 24  # candidates from the screen that closed forms judge
# Factor on the number of simulated candidates, because simulation changes ranks a little.
SPARE = 1.2
ROWS_SCANNED = 20_000  # most screened candidates to search for CLOSED different ones

MISSES_QUEUES = "misses the limits once requests queue"

ReportProgress = Callable[[float, str], None]
Kind = tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """Results of a search, ``best`` sorted by cost.

    ``by_gpu`` has the best candidate of each GPU type, by closed forms if it is not in ``best``.
    ``latency`` and ``speed`` are the fronts of cost against TTFT and against TBT, within the
    limits. ``ruled_out`` counts excluded candidates by reason, among all ``evaluated``.
    """

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
    """Return the ``top`` deployments by cost for the requests, each simulated.

    Deployments without a price follow, sorted by requests per GPU. Of similar deployments
    (``kind_of``) only the best is judged.
    """
    if not instances:
        return SearchResult((), (), (), (), 0, {})
    report(0.0, "Looking at every deployment")
    speeds = speeds_of(instances, requests)
    complete = aggregated_loads(speeds, requests)
    first = prefill_loads(instances, requests.part("prefill"))
    second = decode_loads(speeds, instances, requests.part("decode"))
    table, ruled_out, evaluated = table_of(instances, requests, complete, first, second)
    report(0.3, "Queues of the best")
    chosen = _best_candidates(table, instances, requests, max(CLOSED, int(np.ceil(SPARE * top))))
    judged = [rate_by_closed_forms(candidate, requests) for candidate in chosen]
    closed = sorted(_rated(judged), key=lambda rated: cost_key(rated, requests))
    best: list[Rated] = []
    simulated = closed[: int(np.ceil(SPARE * top))]
    for done, rated in enumerate(simulated):
        report(0.5 + 0.4 * done / len(simulated), "Simulating the best")
        best += _rated([rate_by_simulation(rated.candidate, requests, rated.rate, seed)])
    dropped = len(judged) - len(closed) + len(simulated) - len(best)
    if dropped:
        ruled_out[MISSES_QUEUES] += dropped
    best.sort(key=lambda rated: cost_key(rated, requests))
    report(0.9, "What costs how much at which latency")
    latency, speed = cost_fronts(table, complete, second, instances, requests, best)
    return SearchResult(
        best=tuple(best[:top]),
        by_gpu=_best_by_gpu([*best, *closed[len(simulated) :]], requests),
        latency=latency,
        speed=speed,
        evaluated=evaluated,
        ruled_out=dict(ruled_out),
    )


def cost_key(rated: Rated, requests: Requests) -> tuple[float, float]:
    """Return the sort key of candidates: dollars, then GPUs per request; lower is better.

    Dollars are per request, or per hour for the copies that carry the target rate. They are
    infinite without a price.
    """
    usd, each = rated.candidate.usd_per_hour, 1.0 / rated.rps_per_gpu
    if not np.isfinite(usd):
        return float("inf"), each
    many = 1.0 / rated.rate if requests.rps is None else copies_needed(rated.rate, requests.rps)
    return usd * many, each


def copies_needed(rate: float, rps: float) -> int:
    """Return how many separate copies with capacity ``rate`` carry ``rps``."""
    return max(1, int(np.ceil(rps / rate - 1e-9)))


def kind_of(candidate: Candidate) -> Kind:
    """Return a key that is equal for deployments that a planner treats as one.

    It has the GPUs of an instance, but not how a layer is divided among them.
    """
    decode, first = candidate.decode, candidate.prefill
    size = (0, 0, 0) if first is None else (first.gpus, candidate.prefills, candidate.decodes)
    return (decode.gpu.name, decode.where.weights, decode.engines, decode.gpus, *size)


def _rated(judged: Sequence[Rated | None]) -> list[Rated]:
    return [rated for rated in judged if rated is not None]


def _rows_by_cost(table: Table, requests: Requests) -> IntArray:
    """Return the rows by ``cost_key``, cheapest first."""
    many = 1.0 / table.rate
    if requests.rps is not None:
        many = np.maximum(np.ceil(requests.rps / table.rate - 1e-9), 1.0)
    paid = table.usd_per_hour * many
    return np.lexsort((table.gpus / table.rate, np.where(np.isfinite(paid), paid, np.inf)))


def _best_candidates(
    table: Table, instances: Sequence[Instance], requests: Requests, count: int
) -> list[Candidate]:
    """Choose the best different candidates, and the best of every GPU type."""
    order = _rows_by_cost(table, requests)
    by_kind: dict[Kind, Candidate] = {}
    for row in order[:ROWS_SCANNED].tolist():
        candidate = table.row(row, instances)
        by_kind.setdefault(kind_of(candidate), candidate)
        if len(by_kind) >= count:
            break
    # The comparison of GPU types needs at least one candidate of each.
    types = np.array([instance.gpu.name for instance in instances])[table.decode[order]]
    for row in np.unique(types, return_index=True)[1].tolist():
        candidate = table.row(int(order[row]), instances)
        by_kind.setdefault(kind_of(candidate), candidate)
    return list(by_kind.values())


def _best_by_gpu(rated: Sequence[Rated], requests: Requests) -> tuple[Rated, ...]:
    """Return the best of each GPU type, the cheapest type first."""
    by_gpu: dict[str, Rated] = {}
    for cheapest in sorted(rated, key=lambda rated: cost_key(rated, requests)):
        by_gpu.setdefault(cheapest.candidate.decode.gpu.name, cheapest)
    return tuple(by_gpu.values())
