"""A real hour of conversation traffic on a fleet of plausible size."""

import gzip

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.fleet import Tier
from simulation.metrics import summarise
from simulation.policies.static import Static
from tests.shared_folder import DATA, shared
from tests.simulation.builders import fleet, pool, trace
from tests.simulation.sizing.test_capacity import LARGE


@pytest.fixture(scope="module")
def conversation():
    with gzip.open(shared(DATA / "traces/azure2023_conv.csv.gz"), "rt") as lines:
        next(lines)
        rows = [line.split(",") for line in lines]
    times = np.array([row[0].strip()[:26].replace(" ", "T") for row in rows], "datetime64[us]")
    arrivals = (times - times[0]).astype(float) / 1e6
    isl, osl = (np.array([int(row[i]) for row in rows]) for i in (1, 2))
    return trace(arrivals, isl, np.maximum(osl, 1))


def llama_70b(count, minimum=1):
    return fleet(
        pool(LARGE, initial=count, minimum=minimum, startup_s=120.0),
        tiers=[Tier("t", ttft_s=1.0, tbt_s=0.1)],
    )


def test_a_fleet_of_six_serves_the_hour(conversation):
    s = summarise(simulate(conversation, llama_70b(6), Static([6])))
    assert (s.arrived, s.completed) == (19_366, 19_366)
    assert s.slo_attainment["t"] > 0.95
    # A mean prompt of 1155 tokens takes 0.17 s alone; a token between 30 and 100 ms.
    assert 170 < s.ttft_ms.mean < 500
    assert 30 < s.tbt_ms.p50 < 100
    assert s.input_tokens == conversation.input_tokens.sum()
    assert s.output_tokens == conversation.output_tokens.sum()
    assert s.instance_hours == pytest.approx(6 * s.duration_s / 3600)
