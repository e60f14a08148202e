"""Arrivals within a bin: what a decision knows of the bursts of a trace, or is told of counts."""

from pathlib import Path

import numpy as np
import pytest

from planner.domain.progress import silent
from planner.domain.sizing.sizing import size_over_time
from planner.domain.traffic.forecast_requests import requests_ahead
from planner.domain.traffic.known_lengths import (
    arrival_patterns,
    known_lengths,
    traffic_with_known_lengths,
)
from planner.domain.traffic.sources import StoredTrace
from planner.domain.traffic.traffic import Traffic
from planner.errors import ScenarioError
from simulation.arrival_pattern import ArrivalPattern, dispersion
from simulation.sizing.workload import Burstiness
from simulation.synthesis import arrivals_from_bins
from tests.planner.domain import builders as make

HOUR, BIN_S, RATE = 3600.0, 60.0, 4.0


@pytest.fixture(scope="module")
def coarse_by_default() -> None:
    """Size as in the product, because sizes at different bursts are compared."""


def bursty(folder: Path, levels: list[float], name: str) -> StoredTrace:
    """Return an hour of requests for each level of dispersion, at the same rate in all bins."""
    rng = np.random.default_rng(1)
    counts = np.full(int(HOUR / BIN_S), RATE * BIN_S)
    hours = [
        arrivals_from_bins(counts, BIN_S, hour * HOUR, rng, level)[0]
        for hour, level in enumerate(levels)
    ]
    return make.request_file(folder, np.concatenate(hours), isl=100, osl=10, name=name)


def arrivals(traffic: Traffic, hours: float = 4.0, seed: int = 0) -> Burstiness:
    return arrival_patterns(traffic, traffic.demand.start_s + hours * HOUR, seed)[0]


def one_second(found: Burstiness) -> float:
    """Return the dispersion of the pattern's own arrivals at one second."""
    assert isinstance(found, ArrivalPattern)
    drawn = found.unit_arrivals(100_000, np.random.default_rng(9)) / RATE
    return dispersion(drawn, 1.0, BIN_S)


def traffic_of(stored: StoredTrace, **source: object) -> Traffic:
    asked = make.scenario(
        traffic__sources=[make.source(**source)], traffic__bin_s=BIN_S,
        horizon={"duration_s": HOUR, "period_s": HOUR, "lead_s": 0},
    )  # fmt: skip
    return make.parts(asked, stored)[1]


def test_the_bursts_of_a_trace_are_known_and_those_after_the_decision_are_not(
    tmp_path: Path,
) -> None:
    calm = arrivals(traffic_of(bursty(tmp_path, [1, 1, 1, 1], "calm")))
    wild = arrivals(traffic_of(bursty(tmp_path, [6, 6, 6, 6], "wild")))
    later = arrivals(traffic_of(bursty(tmp_path, [1, 1, 1, 6], "later")), hours=3.0)
    assert one_second(calm) == pytest.approx(1.0, rel=0.1)
    assert one_second(wild) == pytest.approx(6.0, rel=0.15)
    assert one_second(later) == pytest.approx(1.0, rel=0.1)


def test_counts_arrive_as_poisson_unless_a_dispersion_is_stated(tmp_path: Path) -> None:
    stored = make.demand_file(tmp_path, {"a": [RATE * BIN_S] * 240}, bin_s=BIN_S)
    lengths = {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}
    assert arrivals(traffic_of(stored, **lengths)) == 1.0
    stated = traffic_of(stored, **lengths, dispersion=6.0)
    assert one_second(arrivals(stated)) == pytest.approx(6.0, rel=0.15)
    # Requests that are replayed have it too, and the counts of the file.
    begin = stated.demand.start_s
    replayed = stated.requests(begin, begin + 4 * HOUR, seed=5)
    assert len(replayed) == 240 * RATE * BIN_S
    assert dispersion(replayed.arrival_s, 1.0, BIN_S) == pytest.approx(6.0, rel=0.15)


def test_counts_in_finer_bins_than_the_demand_tell_their_bursts(tmp_path: Path) -> None:
    fine = np.tile([0.0, 10 * RATE], 60 * 12)  # every other five seconds
    stored = make.demand_file(tmp_path, {"a": fine.tolist()}, bin_s=5.0)
    lengths = {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}
    found = arrivals(traffic_of(stored, **lengths), hours=2.0)
    assert isinstance(found, ArrivalPattern)
    drawn = found.unit_arrivals(100_000, np.random.default_rng(9)) / RATE
    assert dispersion(drawn, 5.0, BIN_S) > 5.0


def test_a_trace_with_arrival_times_needs_no_dispersion(tmp_path: Path) -> None:
    stored = bursty(tmp_path, [1.0], "trace")
    with pytest.raises(ScenarioError, match="dispersion"):
        traffic_of(stored, dispersion=3.0)


def test_sizes_are_smaller_on_a_bursty_trace_and_what_is_drawn_ahead_has_its_bursts(
    tmp_path: Path,
) -> None:
    capacity = []
    for level in (1.0, 8.0):
        stored = bursty(tmp_path, [level] * 3, f"trace-{level:g}")
        asked = make.scenario(
            traffic__bin_s=BIN_S, fleet={"startup_s": 0},
            horizon={"start": "end", "duration_s": HOUR, "period_s": HOUR, "lead_s": 0},
        )  # fmt: skip
        hardware, traffic, window = make.parts(asked, stored)
        known = known_lengths(traffic, window, 0)
        sizes = size_over_time(hardware, known, 0, silent)
        capacity.append(sizes.pool_tps[0, 0, :8])
        ahead, _ = requests_ahead(
            traffic_with_known_lengths(traffic, known), window, "last-value", 4
        )
        assert dispersion(ahead.arrival_s, 1.0, BIN_S) == pytest.approx(level, rel=0.2)
    calm, wild = capacity
    assert (wild <= calm).all() and wild[0] < calm[0]
