"""Add up request times: waiting, the KV transfer, the first token and the gaps after it."""

import numpy as np

from simulation.arrays import FloatArray
from simulation.fleet import KvLink
from simulation.sizing.birth_death import Occupancy
from simulation.sizing.prompt_queue import MIN_SHARE
from simulation.sizing.spread import Spread, spread, sum_of, thin, unit_exponential
from simulation.sizing.workload import Workload

NO_TIME = Spread(np.zeros(0), np.zeros(0))  # a time that no request has
AT_ONCE = Spread(np.zeros(1), np.ones(1))  # always 0 seconds


def queue_wait(requests: Occupancy, rate: float) -> Spread:
    """Return the distribution of the wait for a place in a batch: zero, or exponential.

    ``requests`` is the number of requests in the system, ``rate`` their arrivals per second. By
    Little's law, the mean number that waits gives the mean of the exponential part.
    """
    places = len(requests.inside) - 1  # ``inside`` has 0 to all places taken
    waiting_share = requests.probability_of_at_least(places)
    if waiting_share <= MIN_SHARE or rate <= 0:
        return AT_ONCE
    points, weights = unit_exponential()
    mean_s = requests.mean_queue / rate / waiting_share
    return spread(
        np.append(0.0, mean_s * points), np.append(1.0 - waiting_share, waiting_share * weights)
    )


def transfer_time(link: KvLink | None, workload: Workload, senders: int) -> Spread:
    """Return the distribution of the seconds to send a KV cache, including the wait for the link.

    Each of ``senders`` prefill instances has a link, and all share one more. Each link is a queue
    with one server. The time is infinite if a link cannot keep up, and 0 without a ``link``.
    """
    if link is None:
        return AT_ONCE
    total = AT_ONCE
    cache_bytes = link.kv_bytes_per_token * workload.facts.isl_points
    for bytes_s, links in ((link.bytes_s, senders), (link.shared_bytes_s, 1)):
        if np.isfinite(bytes_s):
            wait = _link_wait(cache_bytes / bytes_s, workload.rate / links)
            if not np.isfinite(wait.values[-1]):
                return wait
            total = sum_of(total, wait)
    slower_bytes_s = min(link.bytes_s, link.shared_bytes_s)
    return sum_of(total, spread(cache_bytes / slower_bytes_s))


def _link_wait(seconds: FloatArray, rate: float) -> Spread:
    """Return the wait for a link that ``rate`` caches/s use for ``seconds`` each; inf: overloaded.

    The wait of those that wait (M/G/1; Pollaczek and Khinchine) is taken as exponential.
    """
    mean_s = float(seconds.mean())
    load = rate * mean_s
    if load >= 1.0:
        return Spread(np.array([np.inf]), np.ones(1))
    squared_cv = float(seconds.var()) / mean_s**2
    points, weights = unit_exponential()
    wait_s = (1.0 + squared_cv) / 2.0 * mean_s / (1.0 - load)
    return spread(np.append(0.0, wait_s * points), np.append(1.0 - load, load * weights))


def gaps_with_delay(gap: Spread, first: Spread, workload: Workload) -> Spread:
    """Return the distribution of a request's mean gap if its first gap is longer by ``first``.

    ``gap`` is the distribution of the mean gap without that delay.
    """
    gaps = workload.facts.osl_points - 1.0
    gaps = gaps[gaps > 0]
    if not len(gaps) or not len(gap.values):
        return NO_TIME
    delay = thin(first, 64)
    shape = (len(delay.values), len(gaps))
    weights = np.broadcast_to(delay.weights[:, None], shape)
    return sum_of(gap, spread(delay.values[:, None] / gaps, weights))


def end_to_end_time(ttft: Spread, tbt: Spread, workload: Workload) -> Spread:
    """Return the distribution of the end-to-end time: TTFT and the gaps after it."""
    gaps = workload.facts.osl_points - 1.0
    if not len(tbt.values):
        return ttft
    mean_gap = thin(tbt, 32)
    decode_s = gaps[:, None] * mean_gap.values  # [output length, mean gap], independent
    return sum_of(ttft, spread(decode_s, np.broadcast_to(mean_gap.weights, decode_s.shape)))
