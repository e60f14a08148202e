"""Settings of a what-if on prices."""

import numpy as np
import pytest

from planner.domain.whatif.settings import settings_for, variation_of, with_variation
from planner.inputs.scenario.build import build_hardware
from tests.planner.domain.builders import scenario
from tests.planner.domain.whatif.test_static_fleet import EAST


@pytest.mark.parametrize("usd", [2.0, [float(hour) for hour in range(24)]])
def test_a_price_is_multiplied_in_every_hour(usd: float | list[float]) -> None:
    priced = scenario(regions=[EAST | {"usd_per_gpu_hour": {"G": usd}}])
    before = build_hardware(priced)
    settings = settings_for(priced, before)
    dearer = with_variation(priced, variation_of(settings, {"price.G": 1.5}))
    after = build_hardware(dearer)
    assert np.array_equal(after.usd_by_hour, 1.5 * before.usd_by_hour)
