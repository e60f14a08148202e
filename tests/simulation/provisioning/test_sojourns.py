"""Sojourn times of operators: tabulated Erlang C, hundreds of replicas, and a queue played out."""

import heapq

import numpy as np
import pytest
from scipy.stats import poisson

from simulation.provisioning.problem import OperatorProblem, evaluate, sojourns


def one_operator(service_s, rate, replicas, batches=(1,), transfer_s=0.0):
    latency = np.full((1, len(batches), 1), service_s)
    return OperatorProblem(
        names=("operator",),
        edges=(),
        batches=np.array(batches),
        parallel=np.array([1]),
        latency_s=latency,
        transfer_s=np.full_like(latency, transfer_s),
        rate=rate,
        slo_s=1e9,
        max_replicas=replicas,
    )


def test_a_thousand_replicas_are_as_stable_as_one():
    """Against Erlang C from the Poisson distribution in logarithms, at every count that is
    stable."""
    load = 930.0
    table = sojourns(one_operator(1.0, load, 1000))[0, 0, 0]
    counts = np.arange(1, 1001)
    assert np.isinf(table[counts <= load]).all()
    stable = counts[counts > load]
    blocked = np.exp(poisson.logpmf(stable, load) - poisson.logcdf(stable, load))
    waits = stable * blocked / (stable - load * (1.0 - blocked))
    assert table[stable - 1] == pytest.approx(1.0 + waits / (stable - load), rel=1e-9)
    assert (np.diff(table[stable - 1]) < 0).all()


def test_a_queue_played_out_has_the_same_mean():
    """Poisson batches at rate / b, exponential service, four replicas: 200,000 batches."""
    rng = np.random.default_rng(4)
    service_s, rate, batch, replicas = 0.1, 256.0, 8, 4  # load 3.2 of 4
    arrivals = np.cumsum(rng.exponential(batch / rate, 200_000))
    free = [0.0] * replicas
    stayed = 0.0
    for arrival, takes in zip(arrivals, rng.exponential(service_s, arrivals.size), strict=True):
        begins = max(arrival, heapq.heappop(free))
        heapq.heappush(free, begins + takes)
        stayed += begins + takes - arrival
    problem = one_operator(service_s, rate, replicas, batches=(batch,), transfer_s=0.02)
    plan = evaluate(problem, "", np.array([[0, 0, replicas]]))
    assert plan.latency_s - 0.02 == pytest.approx(stayed / arrivals.size, rel=0.03)
    assert plan.latency_s == pytest.approx(sojourns(problem)[0, 0, 0, -1])
