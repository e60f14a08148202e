"""Reports: laws of their blocks, and results read back from what is stored."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import floor, log10
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.planning.purchases import DeferrableWork
from planner.domain.report import Form, Head, Role, Table, shortfall, table
from planner.domain.reports.over_time import demand_chart
from planner.domain.reports.policies import Outcome, cost_chart
from planner.domain.serialise import KEY, MERGED, OPTIONAL, as_json, from_json

FLOATS = st.floats(0, 1e6)


@dataclass(frozen=True, slots=True)
class Inner:
    rate: float | None
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    at: datetime
    inner: Inner = field(metadata={MERGED: True})
    rows: tuple[Inner, ...]
    by_name: dict[str, Inner]
    grid: tuple[tuple[int, ...], ...]
    named: int = field(metadata={KEY: "other"})
    later: Inner | None = field(default=None, metadata={OPTIONAL: True})


INNERS = st.builds(Inner, st.none() | FLOATS, st.text(max_size=5))
STORED = st.builds(
    Stored,
    at=st.just(datetime(2024, 5, 18, 12, tzinfo=UTC)),
    inner=INNERS,
    rows=st.lists(INNERS, max_size=3).map(tuple),
    by_name=st.dictionaries(st.text(max_size=3), INNERS, max_size=3),
    grid=st.lists(st.tuples(st.integers(), st.integers()), max_size=3).map(tuple),
    named=st.integers(),
    later=st.none() | INNERS,
)


@given(STORED)
def test_a_result_is_read_back_as_it_was(stored: Stored) -> None:
    assert from_json(Stored, as_json(stored)) == stored


def test_a_key_that_an_older_version_did_not_write_is_none() -> None:
    assert from_json(Inner, {"name": "m"}) == Inner(None, "m")


@pytest.mark.parametrize("moved", [False, True])
def test_deferrable_demand_stands_on_the_interactive_one(moved: bool) -> None:
    start, hour = datetime(2024, 5, 18, tzinfo=UTC), timedelta(hours=1)
    starts = [start, start + hour]
    rows = [
        {"time": at, "model": "m", "tier": tier, "input_tokens": tokens}
        for at, chat, batch in zip(starts, (3600.0, 7200.0), (0.0, 36000.0), strict=True)
        for tier, tokens in (("chat", chat), ("batch", batch))
    ]
    window = SimpleNamespace(start=start, end=start + 2 * hour, bin_s=3600)
    frame: Any = SimpleNamespace(window=window, deferrable=("batch",))
    work = [DeferrableWork(at, "east", 0.0, 18000.0, 0.0, 0.0) for at in starts] if moved else []

    def tables(name: str) -> pl.DataFrame:
        return pl.DataFrame(rows) if name == "demand" else pl.DataFrame()

    chart, _ = demand_chart(tables, frame, "", "plan", None, work)
    assert chart is not None
    by_role = {series.role: series for series in chart.series}
    band, demand = by_role[Role.DEFERRABLE], by_role[Role.DEMAND]
    assert demand.y[:2] == (1.0, 2.0) == band.low[:2]
    assert band.y[:2] == ((6.0, 7.0) if moved else (1.0, 12.0))


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1))
def test_the_shortfall_is_what_demand_has_above_capacity(pairs: list[tuple[float, float]]) -> None:
    demand, capacity = zip(*pairs, strict=True)
    band = shortfall(range(len(pairs)), demand, capacity)
    missing = [max(0.0, wanted - served) for wanted, served in pairs]
    if band is None:
        assert not any(missing)
    else:
        heights = [high - low for high, low in zip(band.y, band.low, strict=True)]
        assert heights == missing


def test_a_column_without_any_value_is_left_out() -> None:
    made = table(
        [1, 2],
        (Head("n", Form.COUNT), lambda n: n),
        (Head("none"), lambda n: None),
        (Head("some"), lambda n: "x" if n == 2 else ""),
        marked=lambda n: n == 2,
    )
    assert [head.text for head in made.heads] == ["n", "some"]
    assert made.rows == ((1, ""), (2, "x")) and made.marked == {1}


@given(st.lists(st.floats(0.1, 1e5), min_size=1, max_size=8))
def test_numbers_of_a_column_have_three_digits_and_those_of_one_size_the_same_decimals(
    values: list[float],
) -> None:
    texts = Table((Head("x", Form.NUMBER),), tuple((value,) for value in values)).texts()
    decimals = defaultdict(set)
    for (text,), value in zip(texts, values, strict=True):
        assert abs(float(text.replace(",", "")) - value) <= value * 0.005
        if value >= max(values) / 10:
            decimals[floor(log10(value))].add(len(text.partition(".")[2]))
    assert all(len(found) == 1 for found in decimals.values())


def test_bars_of_policies_tell_what_cannot_be_run_or_fails() -> None:
    def figures(name: str, *, meets: bool = True, oracle: bool = False) -> dict[str, Any]:
        return {
            "label": name, "name": name, "cost_usd": 1.0, "gpu_hours": 1.0, "energy_kwh": 1.0,
            "carbon_kg": 1.0, "slo_attainment": {}, "slo_met": {}, "tiers": {},
            "meets_slo": meets, "hindsight": oracle, "survives": None,
        }  # fmt: skip

    rows = [
        from_json(Outcome, figures(name, meets=name != "misses", oracle=name == "oracle"))
        for name in ("shown", "meets", "alone", "misses", "oracle")
    ]
    (chart,) = cost_chart(rows, "shown", "Plan", {"alone", "misses", "oracle"})
    assert {line.x[0].split(" ")[0]: line.role for line in chart.series} == {
        "shown": Role.RECOMMENDED, "meets": Role.CAPACITY, "alone": Role.RISK,
        "misses": Role.SHORTFALL, "oracle": Role.BASELINE,
    }  # fmt: skip
