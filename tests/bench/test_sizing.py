"""The sizing bench: its cases can be met, and its rates are those of the simulation."""

import numpy as np
import pytest

from bench.sizing import (
    by_load,
    draw_case,
    largest_met,
    linear_and_roofline_profiles,
    measure_case,
    summary,
)
from simulation.metrics import meets_slo


@pytest.fixture(scope="module")
def cases():
    known = linear_and_roofline_profiles()
    return [case for i in range(4) if (case := draw_case(i, 0, known)) is not None]


def test_cases_are_the_same_for_the_same_seed_and_differ_between_seeds(cases):
    known = linear_and_roofline_profiles()
    assert draw_case(0, 0, known).words == cases[0].words != draw_case(0, 1, known).words


def test_the_rate_found_meets_the_tier_and_a_little_more_does_not(cases):
    case = cases[0]
    rate, _ = largest_met(case, 1.0, [0, 2], 4000)
    again, run = largest_met(case, rate, [0, 2], 4000)
    assert meets_slo(run).mean() >= case.tier.attainment
    assert again == pytest.approx(rate, rel=0.01)


def test_sizes_are_near_the_simulation_on_other_seeds(cases):
    rows = [measure_case(case, 5, 32_000) for case in cases]
    figures = summary(rows)
    assert figures["median_rate_error"] <= 0.05 and figures["worst_shortfall_points"] <= 2
    errors = by_load(rows)["closed_rate_error"].values()
    assert sum(band["cases"] for band in errors) == len(rows)
    assert all(band["median"] < 0.5 for band in errors)
    assert figures["cases"] == len(rows) and np.isfinite(figures["p95_rate_error"])
