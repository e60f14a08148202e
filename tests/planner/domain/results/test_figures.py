"""The figures of a policy: one declaration, so that JSON, tables, pages and docs agree."""

import json
from dataclasses import replace

import pytest

from planner.domain.columns import Column
from planner.domain.replay.detail import groups_table
from planner.domain.results.figures import (
    GROUPS,
    POLICIES,
    TIERS,
    tiers_table,
)
from simulation.engine.run import simulate
from simulation.metrics import GroupSummary, Percentiles
from simulation.policies.static import Static
from simulation.policies.wrappers.signal_range import SignalRange
from tests.planner.domain.results.test_verdict import NOTHING, run
from tests.simulation.builders import fleet, pool, profile, trace

FAST = GroupSummary(9, 8, 1, 0, 0.9, 800, 90, Percentiles(1.0, 2.0, 3.0, 4.0), NOTHING, NOTHING)


@pytest.fixture
def policy():
    return run(
        "lt-i", 20, fast=0.9, starts={"spot": 2, "local weights": 3}, host_energy_kwh=6.0,
        tiers={"fast": FAST}, worst_hour={"fast": 0.8, "slow": None},
    )  # fmt: skip


def test_starts_are_by_source_and_their_sum_has_a_name_of_its_own(policy):
    row, table = POLICIES.row(policy), POLICIES.table([policy]).row(0, named=True)
    assert row["starts"] == {"spot": 2, "local weights": 3}
    assert row["starts_total"] == table["starts_total"] == table["starts"] == 5


def test_utility_counts_the_requests_within_every_limit():
    """90% of the 8 due of 9 requests, at 5 each; no tier states a utility: no figure."""
    of_fast = replace(FAST, not_due=1)
    one = run("lt-i", 20, tiers={"fast": of_fast})
    assert POLICIES.row(one)["utility"] is None
    worth = tuple(replace(tier, utility=5.0) for tier in one.fleet.tiers)
    with_utility = replace(one, fleet=replace(one.fleet, tiers=worth))
    assert POLICIES.row(with_utility)["utility"] == pytest.approx(0.9 * 8 * 5.0)


def test_whether_a_tier_is_met_has_one_name(policy):
    row, table = POLICIES.row(policy), tiers_table([policy]).row(0, named=True)
    tier = row["tiers"]["fast"]
    assert row["slo_met"]["fast"] is tier["slo_met"] is table["slo_met"] is table["met"] is False
    assert tier["worst_hour"] == table["worst_hour"] == table["worst_hour_attainment"] == 0.8
    assert tier["target"] == table["target"] == 0.95


SWING = SignalRange(
    "KV memory in use", True, 0.002, 0.02, 0.7, 0.3, asked_more=False, asked_fewer=True
)


def test_a_signal_that_moved_and_a_policy_without_one_have_no_note(policy):
    assert POLICIES.row(policy)["note"] == "" and POLICIES.row(policy)["signal"] is None
    moved = replace(SWING, high=0.9, asked_more=True)
    assert POLICIES.row(replace(policy, signal_range=moved))["note"] == ""
    # Never below its threshold, as load only ever grew, is no fault of the signal's.
    assert (
        POLICIES.row(replace(policy, signal_range=replace(moved, asked_fewer=False)))["note"] == ""
    )


def test_energy_of_the_gpus_is_in_both(policy):
    row, table = POLICIES.row(policy), POLICIES.table([policy]).row(0, named=True)
    assert row["gpu_energy_kwh"] == table["gpu_energy_kwh"] == 14.0


@pytest.mark.parametrize(("columns", "make"), [(POLICIES, POLICIES.table), (TIERS, tiers_table)])
def test_what_a_table_holds_is_what_the_json_says(policy, columns, make):
    table = make([policy]).row(0, named=True)
    row = POLICIES.row(policy) if columns is POLICIES else POLICIES.row(policy)["tiers"]["fast"]
    assert columns.cells(json.loads(json.dumps(row, allow_nan=False))) == table


def test_a_column_of_parts_has_them_in_tables_alone():
    column = Column("ttft_ms", "ms", "", parts=("p95",))
    assert column.cells({"ttft_ms": {"mean": 1.0, "p95": 3.0}}) == {"ttft_ms_p95": 3.0}
    assert column.cells({}) == {"ttft_ms_p95": None}
    assert Column("pools", "text", "", flat=False).cells({"pools": []}) == {}


def test_a_table_of_groups_has_the_columns_that_are_declared():
    result = simulate(trace([0.0], 9, 3), fleet(pool(profile())), Static([1]), duration_s=60.0)
    assert groups_table(result).columns == [name for name in GROUPS.cells({}) if name != "policy"]
