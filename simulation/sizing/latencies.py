"""Add up request times: the line, the KV transfer, the first token and the gaps after it."""

import numpy as np

from simulation.fleet import KvLink
from simulation.sizing.birth_death import Occupancy
from simulation.sizing.prompt_queue import NEVER
from simulation.sizing.spread import Spread, spread, sum_of, thin, unit_exponential
from simulation.sizing.workload import Workload

NOTHING = Spread(np.zeros(0), np.zeros(0))
AT_ONCE = Spread(np.zeros(1), np.ones(1))


def queue_wait(law: Occupancy, rate: float) -> Spread:
    """Return the distribution of the wait for a place in seconds: zero, or exponential.

    ``law`` is the number of requests in the system. By Little's law, the mean number that waits
    gives the mean of the exponential part.
    """
    waits = law.at_least(len(law.inside) - 1)
    if waits <= NEVER or rate <= 0:
        return AT_ONCE
    points, share = unit_exponential()
    mean = law.mean_queue / rate / waits
    return spread(np.append(0.0, mean * points), np.append(1.0 - waits, waits * share))


def transfer_time(link: KvLink | None, workload: Workload, senders: int) -> Spread:
    """Return the distribution of the time to send a KV cache over both links.

    They are the sender's link and the shared one. Each is a queue with one server. The time is
    infinite if a link cannot keep up.
    """
    if link is None:
        return AT_ONCE
    total = AT_ONCE
    size = link.kv_bytes_per_token * workload.facts.isl_points
    rate, slower = workload.rate, min(link.bytes_s, link.shared_bytes_s)
    for bytes_s, links in ((link.bytes_s, senders), (link.shared_bytes_s, 1)):
        if not np.isfinite(bytes_s):
            continue
        seconds = size / bytes_s
        mean, load = float(seconds.mean()), rate / links * float(seconds.mean())
        if load >= 1.0:
            return Spread(np.array([np.inf]), np.ones(1))
        squared_cv = float(seconds.var()) / mean**2
        points, share = unit_exponential()
        # M/G/1 wait of those that wait (Pollaczek and Khinchine), taken as exponential.
        waits_s = (1.0 + squared_cv) / 2.0 * mean / (1.0 - load)
        total = sum_of(
            total, spread(np.append(0.0, waits_s * points), np.append(1.0 - load, load * share))
        )
    return sum_of(total, spread(size / slower))


def gaps_with_delay(gap: Spread, first: Spread, workload: Workload) -> Spread:
    """Return the distribution ``gap`` of mean gaps if the first gap is longer by ``first``."""
    gaps = workload.facts.osl_points - 1.0
    gaps = gaps[gaps > 0]
    if not len(gaps) or not len(gap.values):
        return NOTHING
    late = thin(first, 64)
    shape = (len(late.values), len(gaps))
    return sum_of(
        gap, spread(late.values[:, None] / gaps, np.broadcast_to(late.weights[:, None], shape))
    )


def end_to_end_time(ttft: Spread, tbt: Spread, workload: Workload) -> Spread:
    """Return the distribution of the end-to-end time: TTFT and the gaps after it."""
    gaps = workload.facts.osl_points - 1.0
    if not len(tbt.values):
        return ttft
    thinned = thin(tbt, 32)
    shape = (len(gaps), len(thinned.weights))
    return sum_of(
        ttft, spread(gaps[:, None] * thinned.values, np.broadcast_to(thinned.weights, shape))
    )
