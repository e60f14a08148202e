"""Drift of speed by what a live source sees: a replica that is simulated is as fast as its profile,
whatever the load; one that is slower is found out, and since when."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from planner.domain.retrospective.drift import drift_from_profile, observations_of, speed_drift
from planner.inputs.live.replica_speed import MOST_INTERVALS, ServedSpeed, served_speeds
from planner.inputs.live.samples import bins_frame
from simulation.engine.run import simulate
from simulation.performance.linear import LinearProfile
from simulation.policies.static import Static
from tests.simulation.builders import fleet, pool, profile, trace

BIN_S, ISL, OSL = 60, 800, 200
TRUE = profile(
    alpha=0.02, beta=3e-4, gamma=0.03, delta=1e-4, max_batch=512, budget=2048, kv=2_000_000
)


def seen(rate: float, bins: int = 40) -> pl.DataFrame:
    """What an engine's metrics say of a simulated replica, bin by bin."""
    arrivals = np.cumsum(np.random.default_rng(3).exponential(1 / rate, int(rate * BIN_S * bins)))
    log = simulate(trace(arrivals, ISL, OSL), fleet(pool(TRUE)), Static([1])).requests
    begins, ends = arrivals, log.last_token_s
    rows = []
    for n in range(2, bins - 2):
        low, high = n * BIN_S, (n + 1) * BIN_S
        here = (ends >= low) & (ends < high)
        inside = np.clip(np.minimum(ends, high) - np.maximum(begins, low), 0, None)
        rows.append({
            "model": "m", "region": "r", "bin_start": low, "replicas": 1.0,
            "requests": float(here.sum()), "input_tokens": float(here.sum()) * ISL,
            "output_tokens": float(here.sum()) * OSL, "running": inside.sum() / BIN_S,
            "tbt_mean_s": float(log.tbt_s[here].mean()),
        })  # fmt: skip
    return bins_frame(rows)


def slower(line: LinearProfile, times: float) -> LinearProfile:
    names = ("alpha_s", "beta_s", "gamma_s", "delta_s")
    return replace(line, **{name: getattr(line, name) * times for name in names})


@pytest.mark.parametrize("rate", [0.3, 3.0])
def test_a_replica_as_fast_as_its_profile_has_not_drifted(rate):
    (served,) = served_speeds(seen(rate), BIN_S)
    drift = speed_drift(TRUE, observations_of(TRUE, served))
    assert drift.times == pytest.approx(1.0, abs=0.04) and not drift.flagged
    assert drift.since is None and drift.observations == served.at_s.size
    fast = speed_drift(slower(TRUE, 1 / 1.3), observations_of(TRUE, served))
    assert fast.times == pytest.approx(1.3, rel=0.05) and fast.flagged
    assert "iterations take 3" in fast.sentence and "longer than its profile says" in fast.sentence


def test_a_drift_says_since_when():
    (served,) = served_speeds(seen(3.0), BIN_S)
    late = served.at_s >= 20 * BIN_S
    drift = drift_from_profile(TRUE, replace(served, tbt_s=np.where(late, 1.5, 1.0) * served.tbt_s))
    assert drift.flagged and drift.since is not None
    assert 20 * BIN_S <= drift.since.timestamp() <= 27 * BIN_S  # a change is believed by and by


def test_a_profile_that_is_no_line_is_held_against_what_it_says():
    class Bent(LinearProfile):
        """Not to the filter's eyes: a kind of its own."""

    (served,) = served_speeds(seen(3.0), BIN_S)
    bent = Bent(*(getattr(TRUE, name) for name in TRUE.__slots__))
    object.__setattr__(bent, "beta_s", 0.0)
    drift = drift_from_profile(bent, served)
    assert drift.times > 1.02  # what takes time by sequence is missing in ``bent``
    assert drift.observations == served.at_s.size


def test_stretches_are_few_and_what_is_not_known_is_left_out():
    row = {"model": "m", "requests": 10.0, "input_tokens": 100.0, "output_tokens": 50.0,
           "running": 4.0, "replicas": 2.0, "tbt_mean_s": 0.02}  # fmt: skip
    rows = [{**row, "bin_start": 60 * n} for n in range(2 * MOST_INTERVALS)]
    (served,) = served_speeds(bins_frame(rows), 60)
    assert isinstance(served, ServedSpeed) and served.at_s.size == MOST_INTERVALS
    assert served.running[0] == 2.0 and served.requests_per_s[0] == pytest.approx(10 / 2 / 60)
    assert (served.input_tokens[0], served.output_tokens[0], served.tbt_s[0]) == (10, 5, 0.02)
    holes = [{**row, "bin_start": 0, name: None} for name in ("running", "tbt_mean_s", "replicas")]
    assert served_speeds(bins_frame(holes), 60) == []
