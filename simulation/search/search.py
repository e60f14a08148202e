"""Find the best of thousands of candidate deployments.

A candidate is an aggregated instance, or a pair of prefill and decode instances. A fast screen
ranks all of them (``screen``). Closed forms of queues rate some tens of the best. Simulation rates
the best of those (``evaluation``). The fronts of cost against latency are found on the way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.search.evaluation import at_rate, rate_by_closed_forms, rate_by_simulation
from simulation.search.screen import Loads, aggregated_loads, decode_loads, prefill_loads, speeds_of
from simulation.search.table import NONE, Table, table_of
from simulation.search.values import Candidate, Instance, RatedCandidate, Requests

ON_FRONT = 24  # most points of a front
COSTLY = 10.0  # factor on the least cost; more expensive points are on no front
PAIR_LOADS = 8  # decode loads per prefill-decode pair
Fronts = tuple[tuple[RatedCandidate, ...], tuple[RatedCandidate, ...]]
Points = tuple[IntArray, FloatArray, FloatArray, FloatArray]  # table row, requests/s, TTFT, TBT
CLOSED = 24  # least number of candidates from the screen that closed forms rate
# The same of each GPU type with a price. The screen knows no queues, so its first is not enough.
CLOSED_PER_GPU = 6
# Factor on the number of simulated candidates, because simulation changes ranks a little.
SPARE = 1.2
ROWS_SCANNED = 20_000  # most screened candidates to search for CLOSED different ones
MISSES_QUEUES = "misses the limits once requests queue"
ReportProgress = Callable[[float, str], None]
Kind = tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SearchResult:
    """Results of a search for deployments, ``best`` sorted by cost.

    ``by_gpu`` has the best candidate of each GPU type, by closed forms if the type has no price.
    ``latency`` and ``speed`` are the fronts of cost against TTFT and against TBT, within the
    limits. ``ruled_out`` counts excluded candidates by reason. ``evaluated`` is the number of all
    candidates.
    """

    best: tuple[RatedCandidate, ...]
    by_gpu: tuple[RatedCandidate, ...]
    latency: tuple[RatedCandidate, ...]
    speed: tuple[RatedCandidate, ...]
    evaluated: int
    ruled_out: dict[str, int]


def search(
    instances: Sequence[Instance],
    requests: Requests,
    *,
    top: int,
    seed: int = 0,
    report: ReportProgress = lambda number, what: None,
) -> SearchResult:
    """Return the ``top`` deployments by cost for the requests, each simulated, and the fronts.

    Deployments without a price follow, sorted by requests per GPU. Of similar deployments
    (``kind_of``), only the best is simulated.
    """
    if not instances:
        return SearchResult((), (), (), (), 0, {})
    report(0.0, "Looking at every deployment")
    speeds = speeds_of(instances, requests)
    # Loads of instances that do both, that only prefill, and that only decode.
    aggregated = aggregated_loads(speeds, requests)
    prefill = prefill_loads(instances, requests.for_role("prefill"))
    decode = decode_loads(speeds, instances, requests.for_role("decode"))
    table, ruled_out, evaluated = table_of(instances, requests, aggregated, prefill, decode)

    report(0.3, "Queues of the best")
    simulated_count = int(np.ceil(SPARE * top))
    screened = _best_candidates(table, instances, requests, max(CLOSED, simulated_count))
    rated_or_none = [rate_by_closed_forms(candidate, requests) for candidate in screened]
    rated_closed = _by_cost([rated for rated in rated_or_none if rated is not None], requests)
    cheapest = rated_closed[:simulated_count]
    # Simulate the best of each other GPU type too, if it has a price.
    to_simulate = cheapest + [
        rated
        for rated in _best_by_gpu(rated_closed, requests)
        if rated not in cheapest and np.isfinite(rated.candidate.usd_per_hour)
    ]
    best = _by_cost(_simulated(to_simulate, requests, seed, report), requests)
    dropped_count = len(screened) - len(rated_closed) + len(to_simulate) - len(best)
    if dropped_count:
        ruled_out[MISSES_QUEUES] += dropped_count

    report(0.9, "What costs how much at which latency")
    latency, speed = cost_fronts(table, aggregated, decode, instances, requests, best)
    not_simulated = [rated for rated in rated_closed if rated not in to_simulate]
    by_gpu = _best_by_gpu([*best, *not_simulated], requests)
    return SearchResult(tuple(best[:top]), by_gpu, latency, speed, evaluated, dict(ruled_out))


def _simulated(
    to_simulate: Sequence[RatedCandidate], requests: Requests, seed: int, report: ReportProgress
) -> list[RatedCandidate]:
    """Return the candidates as rated by simulation, without those that miss the limits."""
    simulated = []
    for number, rated in enumerate(to_simulate):
        report(0.5 + 0.4 * number / len(to_simulate), "Simulating the best")
        simulated_candidate = rate_by_simulation(rated.candidate, requests, rated.rate, seed)
        if simulated_candidate is not None:
            simulated.append(simulated_candidate)
    return simulated


def _by_cost(rated: Sequence[RatedCandidate], requests: Requests) -> list[RatedCandidate]:
    """Return the candidates sorted by cost, the cheapest first."""
    return sorted(rated, key=lambda each: cost_key(each, requests))


def cost_key(rated: RatedCandidate, requests: Requests) -> tuple[float, float]:
    """Return the sort key of a candidate: dollars, then GPUs per request/s; lower is better.

    Dollars are per request, or per hour for the copies that sustain the target rate. They are
    infinite without a price.
    """
    usd, gpus_per_rate = rated.candidate.usd_per_hour, 1.0 / rated.rps_per_gpu
    if not np.isfinite(usd):
        return float("inf"), gpus_per_rate
    if requests.rps is None:
        return usd / rated.rate, gpus_per_rate
    return usd * copies_needed(rated.rate, requests.rps), gpus_per_rate


def copies_needed(rate: float, rps: float) -> int:
    """Return how many separate copies with capacity ``rate`` sustain ``rps`` requests/s."""
    return max(1, int(np.ceil(rps / rate - 1e-9)))


def kind_of(candidate: Candidate) -> Kind:
    """Return a key that is equal for deployments that a planner considers the same.

    It has GPU type, precision and numbers of GPUs and instances, but neither how the GPUs divide a
    layer nor the engine. A search therefore returns each deployment once, with its best engine.
    """
    decode, prefill = candidate.decode, candidate.prefill
    size = (0, 0, 0) if prefill is None else (prefill.gpus, candidate.prefills, candidate.decodes)
    return (decode.gpu.name, decode.where.weights, decode.gpus, *size)


def _best_candidates(
    table: Table, instances: Sequence[Instance], requests: Requests, count: int
) -> list[Candidate]:
    """Return the ``count`` cheapest candidates with different ``kind_of`` from the screen.

    The CLOSED_PER_GPU cheapest of every GPU type with a price are added, and the best of every
    other type. Candidates of equal cost are sorted by GPUs per request/s.
    """
    # Rows of the table, cheapest first by the same values as ``cost_key``.
    copies = 1.0 / table.rate
    if requests.rps is not None:
        copies = np.maximum(np.ceil(requests.rps / table.rate - 1e-9), 1.0)
    cost = table.usd_per_hour * copies
    rows_by_cost = np.lexsort((table.gpus / table.rate, np.where(np.isfinite(cost), cost, np.inf)))
    by_kind = _first_of_kinds(table, instances, rows_by_cost, count)
    # The comparison of GPU types needs candidates of each.
    gpu_types = np.array([instance.gpu.name for instance in instances])[table.decode[rows_by_cost]]
    for gpu in np.unique(gpu_types):
        type_rows = rows_by_cost[gpu_types == gpu]
        wanted = CLOSED_PER_GPU if np.isfinite(cost[type_rows[0]]) else 1
        for kind, candidate in _first_of_kinds(table, instances, type_rows, wanted).items():
            by_kind.setdefault(kind, candidate)
    return list(by_kind.values())


def _first_of_kinds(
    table: Table, instances: Sequence[Instance], rows: IntArray, count: int
) -> dict[Kind, Candidate]:
    """Return the first candidates of ``rows`` with different ``kind_of``, at most ``count``."""
    by_kind: dict[Kind, Candidate] = {}
    for row in rows[:ROWS_SCANNED].tolist():
        candidate = table.row(row, instances)
        by_kind.setdefault(kind_of(candidate), candidate)
        if len(by_kind) >= count:
            break
    return by_kind


def _best_by_gpu(rated: Sequence[RatedCandidate], requests: Requests) -> tuple[RatedCandidate, ...]:
    """Return the cheapest candidate of each GPU type, the cheapest type first."""
    by_gpu: dict[str, RatedCandidate] = {}
    for cheapest in _by_cost(rated, requests):
        by_gpu.setdefault(cheapest.candidate.decode.gpu.name, cheapest)
    return tuple(by_gpu.values())


def cost_fronts(
    table: Table,
    aggregated: Loads,
    decode: Loads,
    instances: Sequence[Instance],
    requests: Requests,
    simulated: Sequence[RatedCandidate] = (),
) -> Fronts:
    """Return two Pareto fronts within the limits: cost against TTFT, and cost against TBT.

    Their points are candidates at loads of the screen: those of ``aggregated`` and of ``decode``
    instances. Closed forms check them, and the candidates ``simulated`` are added. Cost is in
    dollars per request, or in GPUs per request/s if no candidate has a price.
    """
    aggregated_points = _aggregated_points(table, aggregated, requests)
    pair_points = _pair_points(table, decode, requests)
    columns = zip(aggregated_points, pair_points, strict=True)
    rows, rates, ttft, tbt = (np.concatenate(column) for column in columns)  # by point
    priced = bool(np.isfinite(table.usd_per_hour[rows]).any())
    screened_cost = (table.usd_per_hour if priced else table.gpus)[rows] / rates
    # Expensive points are on no front.
    lowest_cost = np.nanmin(screened_cost, initial=np.inf)
    screened_cost = np.where(screened_cost <= COSTLY * lowest_cost, screened_cost, np.nan)

    def front_of(latencies: FloatArray, measure: str) -> tuple[RatedCandidate, ...]:
        """Return the front of cost against a latency, whose field is ``measure``."""
        on_front = pareto_front(screened_cost, latencies)
        if len(on_front) > ON_FRONT:
            # Closed forms rate every point, so thin long fronts evenly.
            on_front = on_front[np.linspace(0, len(on_front) - 1, ON_FRONT).astype(np.int64)]
        points = list(simulated)
        for point in on_front.tolist():
            candidate = table.row(int(rows[point]), instances)
            rated = at_rate(candidate, float(rates[point]), requests)
            if rated is not None:
                points.append(rated)
        rate = np.array([rated.rate for rated in points])
        candidates = [rated.candidate for rated in points]
        cost_per_hour = [c.usd_per_hour if priced else c.gpus for c in candidates]
        latency = np.array([getattr(rated, measure) for rated in points])
        undominated = pareto_front(np.array(cost_per_hour, np.float64) / rate, latency)
        return tuple(points[i] for i in undominated.tolist())

    return front_of(ttft, "ttft_s"), front_of(tbt, "tbt_s")


def _aggregated_points(table: Table, aggregated: Loads, requests: Requests) -> Points:
    """Return the loads of aggregated instances within the limits as ``Points``."""
    aggregated_rows = np.flatnonzero(table.prefill == NONE)
    instance_of_row = table.decode[aggregated_rows]
    meets_limits = aggregated.meets_limits(requests)[instance_of_row]  # [row, load]
    row, load = np.nonzero(meets_limits)  # of each point, among the aggregated rows
    of_point = (instance_of_row[row], load)  # index into arrays [instance, load]
    return (
        aggregated_rows[row],
        aggregated.rate[of_point],
        aggregated.ttft_s[of_point],
        aggregated.tbt_s[of_point],
    )


def _pair_points(table: Table, decode: Loads, requests: Requests) -> Points:
    """Return prefill-decode pairs at ``PAIR_LOADS`` loads of their decode instances, as ``Points``.

    TTFT is NaN, so pairs are only on the front of TBT.
    """
    rows = np.flatnonzero(table.prefill != NONE)
    loads = np.linspace(0, decode.rate.shape[1] - 1, PAIR_LOADS).astype(np.int64)
    at = np.ix_(table.decode[rows], loads)  # arrays [row, load] of the pairs' decode instances
    rates = table.decodes[rows][:, None] * decode.rate[at]
    row, load = np.nonzero(decode.meets_limits(requests)[at] & (rates <= table.rate[rows, None]))
    no_ttft = np.full(len(row), np.nan)
    return rows[row], rates[row, load], no_ttft, decode.tbt_s[at][row, load]


def pareto_front(first: FloatArray, second: FloatArray) -> IntArray:
    """Return the indices of the points that no other beats in both values, by rising ``first``.

    Lower is better. Of equal points, one is returned. Points with NaN or infinite values are on no
    front.
    """
    finite = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
    order = finite[np.lexsort((second[finite], first[finite]))]
    lowest_so_far = np.minimum.accumulate(second[order])
    # A point is on the front if its second value is below all of those before it.
    is_better = np.ones(len(order), np.bool_)
    is_better[1:] = second[order][1:] < lowest_so_far[:-1]
    return np.asarray(order[is_better], np.int64)
