"""Compute how many requests are in a queue whose service rate depends on their number.

A *place* is what a request occupies while it is served, such as a place in the batch. Requests
beyond the places wait.
"""

from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray

MIN_VARIANCE_FACTOR = 0.02  # so that arrivals of equal gaps do not divide by 0
MAX_LOG_RATIO = 650.0  # largest log ratio, so that exp does not underflow


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """Stationary distribution of the number of requests in a system with some places."""

    inside: FloatArray  # [places + 1] probability of n = 0 .. places requests
    tail: float  # ratio r of the geometric tail: P(places + k) = P(places) r^k
    stable: bool  # False: the queue grows without end

    @property
    def waiting_share(self) -> float:
        """Return P(n > places), the probability that requests wait."""
        return float(self.inside[-1]) * self.tail / (1.0 - self.tail)

    @property
    def mean_queue(self) -> float:
        """Return the mean number of requests that wait beyond the places."""
        return self.waiting_share / (1.0 - self.tail)

    @property
    def mean(self) -> float:
        """Return the mean number in the system."""
        places = len(self.inside) - 1
        return (
            float(self.inside @ np.arange(places + 1))
            + places * self.waiting_share
            + self.mean_queue
        )

    def probability_of_at_least(self, n: int) -> float:
        """Return the probability of ``n`` or more requests."""
        return float(self.inside[n:].sum()) + self.waiting_share

    @property
    def occupancy_probabilities(self) -> FloatArray:
        """Return the probabilities of n occupied places, ``[places + 1]``.

        The last one includes waiting requests.
        """
        probabilities = self.inside.copy()
        probabilities[-1] += self.waiting_share
        return probabilities


def solve_occupancy(
    rate: float,
    death: FloatArray,
    *,
    servers: int | None = None,
    burstiness: float = 1.0,
    service_scv: float = 1.0,
    overlap: float = 0.5,
) -> Occupancy:
    """Return the stationary number of requests in the system, by a birth-and-death process.

    Requests arrive at ``rate``. With n present, ``death[n - 1]`` of them complete per second; the
    last value also applies to larger n. No request waits while at most ``servers`` are present
    (default: all places). ``burstiness`` and ``service_scv`` are the squared coefficients of
    variation of the gaps between arrivals and of the service times.

    P(n) = P(n - 1) rate / death(n) is exact for Poisson arrivals and exponential service. It is
    also exact for any service while no request waits and the speed is constant (insensitivity).
    Two corrections extend it to other variances:

    - While no request waits, ratios are raised to the power 1/z, z = 1 + (burstiness - 1) overlap.
      In heavy traffic the number in G/G/infinity is normal with z times the Poisson variance.
      ``overlap`` is the integral of (1 - F)^2 over the mean of the service time (Whitt 1982),
      1/2 for exponential service.
    - While requests wait, the ratio is r = rho z / (1 - rho + rho z) with rho = rate / death(n) and
      z = (burstiness + service_scv) / 2. P(servers) is scaled so that as many requests wait as
      without the correction. At one speed, the mean wait is that of Allen and Cunneen. For one
      server and Poisson arrivals it is exactly that of Pollaczek and Khinchine.
    """
    places = len(death)
    servers = places if servers is None else servers
    inside = np.zeros(places + 1)
    if rate >= float(death[-1]):
        inside[-1] = 1.0
        return Occupancy(inside, tail=0.0, stable=False)
    if rate == 0.0:
        inside[0] = 1.0
        return Occupancy(inside, tail=0.0, stable=True)
    # z of the docstring, while no request waits and while some wait.
    z_free = max(1.0 + (burstiness - 1.0) * overlap, MIN_VARIANCE_FACTOR)
    z_waiting = max((burstiness + service_scv) / 2.0, MIN_VARIANCE_FACTOR)
    rho = rate / death
    log_ratios = _log_ratios(rho, servers, z_free, z_waiting)
    tail = float(_waiting_ratios(rho, z_waiting)[-1])
    logs = np.concatenate([[0.0], np.cumsum(log_ratios)])
    # Relative to the largest term, exp cannot overflow.
    inside = np.exp(np.maximum(logs - logs.max(), -MAX_LOG_RATIO))
    inside /= inside.sum() + inside[-1] * tail / (1.0 - tail)
    return Occupancy(inside, tail, stable=True)


def _log_ratios(rho: FloatArray, servers: int, z_free: float, z_waiting: float) -> FloatArray:
    """Return the logarithms of P(n) / P(n - 1) for n = 1, 2, ...; see ``solve_occupancy``."""
    logs = np.log(rho)
    # From index 1: the probability of an empty system depends on the load only.
    logs[1:servers] /= z_free
    logs[servers:] = np.log(_waiting_ratios(rho, z_waiting)[servers:])
    # Scale P(servers), so that as many requests wait as without the correction.
    rho_at_servers = float(rho[servers - 1])
    if rho_at_servers < 1.0:
        logs[servers - 1] -= np.log(1.0 - rho_at_servers + rho_at_servers * z_waiting)
    return logs


def _waiting_ratios(rho: FloatArray, z_waiting: float) -> FloatArray:
    """Return P(n) / P(n - 1) while requests wait."""
    divisor = np.where(rho < 1.0, 1.0 - rho + rho * z_waiting, 1.0)
    return np.where(rho < 1.0, rho * z_waiting / divisor, rho ** (1.0 / z_waiting))
