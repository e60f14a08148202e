"""What a request costs at which latency, over every load of every candidate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.search.front import front
from simulation.search.judge import at_rate
from simulation.search.screen import Loads
from simulation.search.table import Table
from simulation.search.values import Instance, Rated, Wanted

ON_FRONT = 24  # points of a front, at most
COSTLY = 10.0  # times the least cost, beyond which points are on no front
PAIR_LOADS = 8  # of decode instances beside prefill ones

Fronts = tuple[tuple[Rated, ...], tuple[Rated, ...]]
Points = tuple[IntArray, FloatArray, FloatArray, FloatArray]  # row, requests/s, TTFT, TBT


def fronts(
    table: Table,
    whole: Loads,
    second: Loads,
    instances: Sequence[Instance],
    wanted: Wanted,
    known: Sequence[Rated] = (),
) -> Fronts:
    """Cost of a request against TTFT and against TBT within the limits, found by the first look
    and judged by closed forms, beside what is ``known`` already. Cost is dollars, or GPUs where no
    candidate has a price."""
    parts = zip(_alone(table, whole, wanted), _apart(table, second, wanted), strict=True)
    rows, rates, ttft, tbt = (np.concatenate(part) for part in parts)
    priced = bool(np.isfinite(table.usd_per_hour[rows]).any())
    paid = (table.usd_per_hour if priced else table.gpus)[rows] / rates
    paid = np.where(paid <= COSTLY * np.nanmin(paid, initial=np.inf), paid, np.nan)
    found = []
    for seconds, measure in ((ttft, "ttft_s"), (tbt, "tbt_s")):
        places = front(paid, seconds)
        if len(places) > ON_FRONT:
            places = places[np.linspace(0, len(places) - 1, ON_FRONT).astype(np.int64)]
        judged = [at_rate(table.row(int(rows[p]), instances), float(rates[p]), wanted)
                  for p in places]  # fmt: skip
        sure = [*known, *(one for one in judged if one is not None)]
        cost = [(one.candidate.usd_per_hour if priced else one.candidate.gpus) / one.rate
                for one in sure]  # fmt: skip
        late = [getattr(one, measure) for one in sure]
        found.append(tuple(sure[int(i)] for i in front(np.array(cost), np.array(late))))
    return found[0], found[1]


def _alone(table: Table, whole: Loads, wanted: Wanted) -> Points:
    """Of instances that do all, at every load within the limits."""
    rows = np.flatnonzero(table.prefill < 0)
    k = table.decode[rows]
    row, load = np.nonzero(whole.within(wanted)[k])
    at = (k[row], load)
    return rows[row], whole.rate[at], whole.ttft_s[at], whole.tbt_s[at]


def _apart(table: Table, second: Loads, wanted: Wanted) -> Points:
    """Of pairs at some loads of their decode side, whose TTFT is left to their best rate."""
    rows = np.flatnonzero(table.prefill >= 0)
    k = table.decode[rows]
    loads = np.linspace(0, second.rate.shape[1] - 1, PAIR_LOADS).astype(np.int64)
    rates = table.decodes[rows][:, None] * second.rate[k][:, loads]
    row, load = np.nonzero(
        second.within(wanted)[k][:, loads] & (rates <= table.rate[rows][:, None])
    )
    nothing = np.full(len(row), np.nan)
    return rows[row], rates[row, load], nothing, second.tbt_s[k][:, loads][row, load]
