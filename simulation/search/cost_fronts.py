"""Compute the cost of a request by latency, over every load of every candidate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.search.evaluation import at_rate
from simulation.search.pareto import pareto_front
from simulation.search.screen import Loads
from simulation.search.table import Table
from simulation.search.values import Instance, Rated, Requests

ON_FRONT = 24  # most points of a front
COSTLY = 10.0  # factor on the least cost; more expensive points are on no front
PAIR_LOADS = 8  # decode loads per prefill-decode pair

Fronts = tuple[tuple[Rated, ...], tuple[Rated, ...]]
Points = tuple[IntArray, FloatArray, FloatArray, FloatArray]  # row, requests/s, TTFT, TBT


def cost_fronts(
    table: Table,
    complete: Loads,
    second: Loads,
    instances: Sequence[Instance],
    requests: Requests,
    simulated: Sequence[Rated] = (),
) -> Fronts:
    """Return the fronts of request cost against TTFT and against TBT within the limits.

    Points come from the screen and are judged by closed forms. Points of ``simulated`` are added.
    Cost is in dollars, or in GPUs if no candidate has a price.
    """
    parts = zip(
        _aggregated_points(table, complete, requests),
        _pair_points(table, second, requests),
        strict=True,
    )
    rows, rates, ttft, tbt = (np.concatenate(part) for part in parts)
    priced = bool(np.isfinite(table.usd_per_hour[rows]).any())
    paid = (table.usd_per_hour if priced else table.gpus)[rows] / rates
    paid = np.where(paid <= COSTLY * np.nanmin(paid, initial=np.inf), paid, np.nan)
    fronts_of = []
    for seconds, measure in ((ttft, "ttft_s"), (tbt, "tbt_s")):
        on_front = pareto_front(paid, seconds)
        if len(on_front) > ON_FRONT:
            # Closed forms judge every point, so thin long fronts evenly.
            on_front = on_front[np.linspace(0, len(on_front) - 1, ON_FRONT).astype(np.int64)]
        judged = [at_rate(table.row(int(rows[p]), instances), float(rates[p]), requests)
                  for p in on_front]  # fmt: skip
        sure = [*simulated, *(rated for rated in judged if rated is not None)]
        cost = [(rated.candidate.usd_per_hour if priced else rated.candidate.gpus) / rated.rate
                for rated in sure]  # fmt: skip
        late = [getattr(rated, measure) for rated in sure]
        fronts_of.append(tuple(sure[int(i)] for i in pareto_front(np.array(cost), np.array(late))))
    return fronts_of[0], fronts_of[1]


def _aggregated_points(table: Table, complete: Loads, requests: Requests) -> Points:
    """Return the points of aggregated instances at every load within the limits."""
    rows = np.flatnonzero(table.prefill < 0)
    k = table.decode[rows]
    row, load = np.nonzero(complete.within(requests)[k])
    points = (k[row], load)
    return rows[row], complete.rate[points], complete.ttft_s[points], complete.tbt_s[points]


def _pair_points(table: Table, second: Loads, requests: Requests) -> Points:
    """Return the points of prefill-decode pairs at some loads of their decode side.

    Their TTFT is NaN here, so they are on the TBT front only.
    """
    rows = np.flatnonzero(table.prefill >= 0)
    k = table.decode[rows]
    loads = np.linspace(0, second.rate.shape[1] - 1, PAIR_LOADS).astype(np.int64)
    rates = table.decodes[rows][:, None] * second.rate[k][:, loads]
    row, load = np.nonzero(
        second.within(requests)[k][:, loads] & (rates <= table.rate[rows][:, None])
    )
    nothing = np.full(len(row), np.nan)
    return rows[row], rates[row, load], nothing, second.tbt_s[k][:, loads][row, load]
