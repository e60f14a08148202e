"""Static fleets in a window: what they serve, and what they cost."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.domain.replay.static_replay import served_by
from tests.planner.domain.replay.test_policies import study


def test_idle_replicas_are_paid(tmp_path: Path) -> None:
    """A static fleet of a model without requests costs its GPU-hours."""
    busy = study(tmp_path, horizon={"period_s": 300, "lead_s": 120, "duration_s": 1200})
    idle = replace(busy, trace=busy.trace.rows(np.zeros(len(busy.trace), bool)), carried=None)
    goals = {tier.name: tier.attainment for tier in busy.hardware.tiers}
    none, paid = (served_by(each, np.array([10]), 0, {}, goals) for each in (idle, busy))
    assert none is not None and not none.due.any() and not none.stopped_early
    assert paid is not None and paid.due.any()
    assert none.cost_usd == pytest.approx(paid.cost_usd, rel=0.02)
