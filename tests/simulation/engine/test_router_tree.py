"""The router's choice among few instances, which it compares, and among many, in a tree."""

import numpy as np
import pytest

from simulation.engine import allocation
from simulation.engine.routing_order import FEW
from simulation.engine.run import simulate
from simulation.fleet import ROUTERS, Routing
from tests.simulation.builders import fleet, pool, trace
from tests.simulation.scripted_policies import Asking


@pytest.mark.parametrize("router", [name for name in ROUTERS if name != "prefix-aware"])
def test_growing_pools_choose_as_with_a_tree_from_the_start(monkeypatch, router):
    rng = np.random.default_rng(7)
    arrivals = np.floor(np.cumsum(rng.exponential(1 / 12, 4000)) * 256) / 256
    requests = trace(
        arrivals,
        rng.integers(1, 200, 4000),
        rng.integers(1, 120, 4000),
        region=rng.integers(0, 2, 4000),
        regions=("r", "s"),
    )
    served_by = fleet(
        pool(), pool(region="s"), regions=("r", "s"), routing=Routing(instance=router)
    )
    first, second = [FEW - 5, FEW - 2, FEW + 6, FEW - 6, FEW + 9], [2, FEW + 3, FEW, 1, FEW + 5]
    policy = Asking(*zip(first, second, strict=True))

    def served():
        """Return the log of requests of a replay."""
        return simulate(requests, served_by, policy, duration_s=400.0).requests

    compared = served()
    monkeypatch.setattr(allocation, "PREFIX_AWARE", ROUTERS.index(router))
    ranked = served()
    assert compared.last_token_s.max() > 240.0  # served by all sizes of the fleet
    np.testing.assert_array_equal(compared.first_token_s, ranked.first_token_s)
    np.testing.assert_array_equal(compared.last_token_s, ranked.last_token_s)
