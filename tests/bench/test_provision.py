"""The bench of provisioning: its small parts, and what its claims are read from."""

import numpy as np
import pytest

from bench.provision import algorithms, level_replays, savings
from bench.provision.services import Requests, trace
from tests.shared_folder import TRACES, shared
from tests.simulation.provisioning.cases import random_demand, random_problem


def test_gaps_are_of_the_proven_optimum(monkeypatch):
    monkeypatch.setattr(algorithms, "CASES", 60)
    figures = algorithms.gaps()
    assert figures["our_greedy_infeasible"] == 0
    assert 0 <= figures["our_greedy_gap"] <= 0.03
    assert figures["printed_greedy_gap"] >= 0
    assert 0 <= figures["printed_greedy_infeasible"] <= 1


def test_requests_confirm_levels_of_random_services():
    """What the bench says of sixty, on three."""
    figures = level_replays.everything(3)
    assert figures["plan_shortfall_points"] <= 1.0
    assert figures["level_order_violations"] == figures["over_power"] == 0
    assert figures["monotone_violations"] == 0
    assert figures["replica_agreement"] <= 1e-3


def test_our_greedy_is_near_the_fewest_devices(monkeypatch):
    monkeypatch.setattr(algorithms, "CASES", 120)
    assert 0 <= algorithms.device_gap()["gap_to_exact"] <= 0.05


def test_cases_are_the_same_for_the_same_seed():
    first, two = (random_problem(5, **algorithms.LARGE, dag=True) for _ in range(2))
    assert (first.latency_s == two.latency_s).all() and first.edges == two.edges
    assert first.latency_s.shape == (30, 64, 4) and first.max_replicas == 64
    assert (random_demand(first, 1).compute == random_demand(two, 1).compute).all()


def test_a_trace_scaled_in_rate_keeps_its_time_and_lengths():
    rng = np.random.default_rng(0)
    arrival = np.sort(rng.uniform(0, 3600, 4000))
    isl = rng.integers(1, 999, 4000).astype(float)
    requests = Requests(arrival - arrival[0], isl, isl)
    more = requests.at_rate(10 * requests.rate)
    assert more.arrival_s.size == 40_000
    assert more.arrival_s[-1] == pytest.approx(3600, rel=0.02)
    assert (np.diff(more.arrival_s) >= 0).all()
    assert more.isl.mean() == pytest.approx(isl.mean())


def test_claims_are_read_off_the_rows():
    def row(phase, rate, gpus, memory, as_traced=False):
        return savings.Row(
            "azure",
            "qwen2-7b",
            "A100-80GB",
            phase,
            rate,
            1000.0,
            as_traced,
            10,
            8,
            7,
            gpus,
            0.1,
            memory,
        )

    rows = [row("prefill", 40.0, 0.3, 0.4), row("decode", 40.0, 0.1, 0.2),
            row("prefill", 5.0, 0.0, 0.1, as_traced=True)]  # fmt: skip
    swept = [
        {"model": m, "isl": n, "gpus": g, "memory": g_m}
        for m in savings.SWEPT
        for n, g, g_m in ((1024, 0.3, 0.2), (32768, 0.1, 0.6))
    ]
    more = {
        "length": swept,
        "size": [{"model": m, "gpus": 0.1 * i} for i, m in enumerate(savings.SIZES)],
        "throughput": [{"ratio": 1.2}],
    }
    held = {name: answer["holds"] for name, answer in savings.claims(rows, more).items()}
    assert list(held.values()) == [True, True, True, True, False]


def test_azure_2023_is_read_with_its_rate():
    shared(TRACES / "azure2023_conv.csv.gz")
    requests = trace("azure")
    assert requests.arrival_s.size == 19_366
    assert requests.rate == pytest.approx(5.53, rel=0.01)
    assert requests.isl.mean() == pytest.approx(1154.7, rel=1e-3)
