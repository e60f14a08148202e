"""What serving instances carry over time, in the demand's unit, against counting by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from planner.domain.replay.replica_loss import interactive_demand
from planner.domain.replay.serving_capacity import capacity_table, serving
from planner.domain.study import Study
from tests.planner.domain import builders as make

LENGTHS = {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}
THETA = 1000.0  # input tokens/s of an instance, so that n carry n times it
BIN_S, BINS = 60.0, 10


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Ten minutes of about 1,500 input tokens/s, on instances that carry 1,000 each."""
    stored = make.demand_file(tmp_path_factory.mktemp("carrying"), {"m": [900.0] * 60})
    scenario = make.scenario(
        traffic={"sources": [make.source(**LENGTHS)]},
        horizon={"duration_s": BIN_S * BINS, "period_s": 300},
    )
    return make.study(scenario, stored, THETA)


def series(*ready: float) -> Any:
    """Of one pool, a value each minute."""
    return cast(Any, SimpleNamespace(ready=np.array([ready]), interval_s=BIN_S))


def test_what_is_asked_is_what_arrives_and_cannot_wait(study: Study) -> None:
    load = interactive_demand(study)
    assert load.shape == (BINS, 1, 1)
    assert load.sum() * BIN_S == pytest.approx(study.trace.input_tokens.sum())
    tiers = tuple(replace(tier, deferrable=True) for tier in study.hardware.tiers)
    waiting = replace(study, hardware=replace(study.hardware, tiers=tiers))
    assert not interactive_demand(waiting).any()


def test_pools_cut_from_one_count_together(study: Study) -> None:
    both = cast(Any, SimpleNamespace(ready=np.array([[1.0] * BINS, [2.0] * BINS]), interval_s=60.0))
    assert serving(study, both, [0, 0])[:, 0, 0, 0].tolist() == [3] * BINS


def test_the_capacity_line_has_rows_where_it_changes(study: Study) -> None:
    table = capacity_table(study, series(*[2.0] * 4, *[3.0] * 6), [0])
    assert table["capacity_tps"].to_list() == [2 * THETA, 3 * THETA, 3 * THETA]
    start = table["time"][0]
    assert [(time - start).total_seconds() for time in table["time"]] == [0, 240, 540]
