"""The answer as a sentence that can be carried out."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from planner.domain.formats import percent
from planner.domain.results.answer import ReplicaSchedule, ScheduleRow, answer_of, schedule_tables
from planner.domain.study import Survival
from planner.domain.traffic.window import Window
from planner.inputs.scenario.settings import SpareSettings, Spending
from tests.planner.domain.results.test_verdict import run

NO_SPARE, NO_LIMIT = SpareSettings(), Spending.of(None, None, None)
START = 1_716_210_000.0  # 20 May 2024, 13:00


def study(
    regions: tuple[str, ...] = ("east", "west"),
    clock: str = "utc",
    spare: SpareSettings = NO_SPARE,
    each_hour: Spending = NO_LIMIT,
    in_all: Spending = NO_LIMIT,
) -> Any:
    """One model in each region, a day in four periods."""
    column = SimpleNamespace(label="G")
    hardware = SimpleNamespace(
        model_region_gpu=[(0, r, 0) for r in range(len(regions))],
        regions=[SimpleNamespace(name=name) for name in regions],
        models=[SimpleNamespace(name="8b")],
        columns=[column],
        minimum=np.zeros((1, len(regions), 1), np.int64),
    )
    window = Window(START, START + 86_400.0, 21_600.0, 600.0, 300.0, after_traffic=False)
    return cast(
        Any,
        SimpleNamespace(
            hardware=hardware,
            window=window,
            traffic=SimpleNamespace(clock=clock),
            settings=SimpleNamespace(
                plan=SimpleNamespace(spare=spare, each_hour=each_hour, in_all=in_all)
            ),
            counts_by_pool=lambda counts: counts[:, 0, :, 0],
        ),
    )


def planned(counts: list[list[int]], **more: Any) -> Any:
    lt_i = run("lt-i", 1980.0)
    ready = np.repeat(np.array(counts, float).T, 6, axis=1)
    target = np.array(counts)[:, None, :, None]
    fields = {"plan": SimpleNamespace(target=target), "survival": Survival({}, 0.5, 0.45)} | more

    return replace(lt_i, series=cast(Any, SimpleNamespace(ready=ready)), **fields)


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = SimpleNamespace(model="8b", arrangement="2 x G", role="mixed")
    monkeypatch.setattr("planner.domain.results.answer.replica_of", lambda *_: replica)


def test_it_says_what_to_run_from_when_at_what_cost_and_how_well() -> None:
    take = planned([[2, 2], [3, 2], [3, 2], [2, 2]])
    answer = answer_of(study(), take, run("today", 3300.0))
    assert answer.sentence == (
        "Run 8b: 2 in east, 2 in west from 13:00 UTC on 20 May 2024, then by the schedule (4 to "
        "5); 4.5 replicas on average; $1,980 a day ($59.4k a month of such days), 40% less than "
        "current fleet, at equal SLO attainment; SLO attainment 99.0% of fast (target "
        "95%), 99.0% of slow (target 90%); survives the loss of one replica: no (SLO attainment "
        "50.0%)."
    )
    assert answer.what == answer.sentence.split("; 4.5")[0] + "."
    assert [fact.of for fact in answer.facts] == [
        "Fleet", "Cost", "SLO attainment", "Survives the loss of one replica"
    ]  # fmt: skip
    assert all(f"{fact.before}{fact.words}" in answer.sentence for fact in answer.facts)
    assert [row.replicas for row in answer.timetable.rows] == [(2, 2), (3, 2), (2, 2)]
    rows = answer.timetable.rows
    assert [f"{row.begins:%d %H:%M}" for row in rows] == ["20 12:50", "20 18:50", "21 07:00"]
    assert [f"{row.period:%d %H:%M}" for row in rows] == ["20 13:00", "20 19:00", "21 07:00"]
    table = schedule_tables(answer.timetable)["timetable"]
    assert table.columns == ["begins", "period", "8b east 2 x G", "8b west 2 x G"]
    assert table["8b east 2 x G"].to_list() == [2, 3, 2]


def test_a_policy_with_a_rule_of_its_own_begins_with_what_it_had() -> None:

    hpa = run("hpa", 10.0)
    take = replace(
        hpa, series=cast(Any, SimpleNamespace(ready=np.full((1, 4), 6.0))),
        survival=Survival({}, 0.25, 0.7),
    )  # fmt: skip
    answer = answer_of(study(("east",)), take, take)
    assert answer.sentence.startswith("Run 8b: 5 in east from 13:00 UTC on 20 May 2024, and let ")
    assert answer.timetable.by_itself
    assert "no (SLO attainment 25.0%)" in answer.sentence
    assert "less than" not in answer.sentence  # it is its own baseline


def test_a_static_fleet_with_a_guard_has_a_schedule() -> None:
    series = SimpleNamespace(ready=np.full((1, 4), 6.0))
    take = replace(run("flat-g", 10.0), series=cast(Any, series))
    answer = answer_of(study(("east",)), take, take)
    assert [row.replicas for row in answer.timetable.rows] == [(5,)]
    assert not answer.timetable.by_itself


@pytest.mark.parametrize(("share", "words"), [(0.9998, "99.98%"), (1.0, "100.0%")])
def test_what_is_not_all_is_not_rounded_to_all(share: float, words: str) -> None:
    assert percent(share) == words


def test_a_timetable_of_nothing_is_no_table() -> None:
    nothing = ReplicaSchedule((), (ScheduleRow(cast(Any, None), ()),), by_itself=False)
    assert schedule_tables(nothing) == schedule_tables(None) == {}


def test_what_it_takes_beyond_the_limits_of_plans_is_told() -> None:
    """Prices are $2 a GPU-hour of one GPU: 3 and then 5 instances, of which one starts."""
    ready, starting = np.array([[3.0] * 6 + [4.0] * 18]), np.array([[0.0] * 6 + [1.0] * 18])
    series = SimpleNamespace(
        ready=ready, starting=starting, draining=np.zeros((1, 24)), interval_s=3600.0
    )
    take = replace(planned([[5]] * 4), series=cast(Any, series))

    def above(**limits: Spending) -> list[str]:
        answer = answer_of(study(("east",), **limits), take, run("today", 3300.0))  # type: ignore[arg-type]
        return [fact.words for fact in answer.facts if fact.of == "Above a limit"]

    assert above(each_hour=Spending.of(10.0, None, None)) == []
    assert above(each_hour=Spending.of(9.0, None, None)) == [
        "$10.00 an hour where $9.00 is the most"
    ]
    assert above(in_all=Spending.of(1000.0, 1000.0, None)) == [
        "$1,980 in this window where $1,000 is the most; "
        "1,980 kg CO2e in this window where 1,000 is the most"
    ]
