"""The law of a queue with a state-dependent rate: closed forms it must come down to."""

import numpy as np
import pytest

from simulation.sizing.birth_death import solve_occupancy
from simulation.sizing.queueing import erlang_c, mmc_mean_wait


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("scv", [0.0, 0.5, 4.0])
def test_one_place_waits_as_pollaczek_and_khinchine_say(rho, scv):
    law = solve_occupancy(rho, np.ones(1), service_scv=scv)
    assert law.mean_queue / rho == pytest.approx(rho * (1 + scv) / 2 / (1 - rho))
    assert law.probability_of_at_least(1) == pytest.approx(rho)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.9), (3, 2.0), (20, 17.0)])
def test_many_places_at_one_speed_are_mmc(servers, load):
    law = solve_occupancy(load, np.arange(1.0, servers + 1))
    assert law.probability_of_at_least(servers) == pytest.approx(erlang_c(servers, load))
    assert law.mean_queue / load == pytest.approx(mmc_mean_wait(servers, load, 1.0))


def test_more_places_than_come_are_poisson():
    law = solve_occupancy(4.0, np.arange(1.0, 60.0))
    n = np.arange(60)
    assert law.inside @ n == pytest.approx(4.0)
    assert law.inside @ (n - 4.0) ** 2 == pytest.approx(4.0)


def test_bursts_widen_the_law_as_in_heavy_traffic():
    calm, bursty = (
        solve_occupancy(100.0, np.arange(1.0, 400.0), burstiness=b, overlap=0.5) for b in (1.0, 5.0)
    )
    n = np.arange(400)
    variance = [law.inside @ (n - law.inside @ n) ** 2 for law in (calm, bursty)]
    assert variance[1] / variance[0] == pytest.approx(1 + 4 * 0.5, rel=0.05)


def test_bursts_wait_longer_and_a_clock_shorter():
    waits = [solve_occupancy(0.8, np.ones(1), burstiness=b).mean_queue for b in (0.0, 1.0, 4.0)]
    assert waits == sorted(waits)
    assert waits[2] == pytest.approx(2.5 * waits[1])  # Kingman: (4 + 1) / 2


def test_servers_that_speed_up_with_the_line_are_summed_by_hand():
    law = solve_occupancy(1.0, np.array([1.0, 2.0, 4.0]), servers=1)
    weights = np.array([1.0, 1.0, 0.5, 0.125])
    weights /= weights.sum() + 0.125 * (0.25 / 0.75)
    assert law.inside == pytest.approx(weights)


def test_what_comes_faster_than_it_goes_is_not_stable():
    assert not solve_occupancy(2.0, np.array([1.0, 2.0])).stable
    assert solve_occupancy(0.0, np.ones(3)).inside.tolist() == [1, 0, 0, 0]
