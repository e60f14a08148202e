"""bin/manage pd-ratio, and sizes and ratios as runs: documents, pages without scripts, refusals."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from planner.domain.kinds.pd_ratio import PdRatioResult
from planner.domain.pd.figures import AggregatedCapacity, RatioFigures
from planner.domain.pd.verdict import headline
from planner.domain.report import Chart, Role
from planner.domain.reports.pd_ratio import report as ratio_report
from planner.management.runs import load_scenario
from planner.models import Run, Scenario, User
from planner.outputs.render.terminal import terminal_text
from planner.outputs.reports import run_report
from planner.selectors.runs import answer_of, runs_with_answers, typed_result
from planner.services.runs import run_create
from planner.services.scenarios import scenario_create
from planner.services.worker import run_execute
from tests.planner.management.calling import SCENARIO, answer, problem
from tests.planner.reports import last_report, rows_of, tables_of
from tests.planner.web.pages import json_in, signed_in, text_of

pytestmark = pytest.mark.django_db
LINK = "\nserving:\n  - {kv_transfer: {gb_s: 50}}\n"


@pytest.fixture
def scenario(folder: Path) -> Path:
    path = folder / "apart.yml"
    path.write_text(SCENARIO + LINK)
    return path


def ran(owner: User, path: Path, kind: str, **options: Any) -> Run:
    document, name = load_scenario(str(path), lambda *_: None)
    run = run_create(
        owner=owner, kind=kind, document=document, name=name, options=options, enqueue=False
    )
    return run_execute(run_id=run.pk, raise_errors=True)


def page(user: User, run: Run) -> Any:
    return signed_in(user).get(reverse("web:run", args=[run.pk]))


def test_ratios_on_the_command_line_and_on_their_page(planner: User, scenario: Path) -> None:
    result = answer("pd-ratio", scenario, "--service", "m", "--instances", 4)
    report = run_report(run := Run.objects.get(kind=Run.Kind.PD_RATIO))
    printed = terminal_text(report)
    assert all(ratio in printed for ratio in ("1P:3D", "2P:2D", "3P:1D"))
    assert [(row["prefill"], row["decode"]) for row in result["ratios"]] == [(1, 3), (2, 2), (3, 1)]
    assert result["ratios"][0].keys() >= {"prefill", "decode", "max_tps", "bound_by"}
    best = result["best"]
    assert best["max_tps"] == max(row["max_tps"] for row in result["ratios"])
    simulated = [row for row in result["ratios"] if row["by"] == "simulation"]
    assert best["max_tps"] in [row["max_tps"] for row in simulated]
    assert abs(result["prediction_error"]) < 0.3
    assert result["mixed"]["max_tps"] > 0
    assert len(result["sensitivity"]["by_lengths"]) == len(result["sensitivity"]["isl"])
    assert result["over_time"] and result["over_time"][0]["prefill"] >= 1
    at_the_edge = (best["prefill"], best["decode"]) in ((1, 3), (3, 1))
    gains = best["max_tps"] >= 1.02 * result["mixed"]["max_tps"]
    assert len(report.warnings) == (at_the_edge and gains)
    split = replace(typed_result(run, PdRatioResult), mixed=None)
    unlimited = replace(split, limits=replace(split.limits, tbt_ms=None, e2e_ms=None))
    warnings = [len(ratio_report(each, {}).warnings) for each in (split, unlimited)]
    assert warnings == [at_the_edge, at_the_edge + 1]
    shown = page(planner, run)
    text = text_of(shown)
    assert report.answer == result["headline"] and result["headline"] in text
    assert f"{best['prefill']}P:{best['decode']}D" in text
    drawn = json_in(shown, "ratios-1-data")
    assert drawn["data"][0]["x"] == ["1P:3D", "2P:2D", "3P:1D"]
    assert drawn["data"][0]["y"] == [row["max_tps"] for row in result["ratios"]]
    (ratios,) = tables_of(report, "Ratios")
    (marked,) = ratios.marked
    assert ratios.rows[marked][:2] == (f"{best['prefill']}P:{best['decode']}D", best["max_tps"])
    lengths, limits = tables_of(report, "Sensitivity")
    assert len(lengths.rows) == len(result["sensitivity"]["isl"])
    for row, cells in zip(limits.rows, result["sensitivity"]["by_limits"], strict=True):
        shown_cells = [f"{c['prefill']}P:{c['decode']}D" if c["prefill"] else "none" for c in cells]
        assert list(row[1:]) == shown_cells


def test_aggregated_serving_is_advised_where_a_split_gains_nothing() -> None:
    best = RatioFigures(3, 5, 1000.0, 1.0, "ttft", 1.0, 1.0, 1.0)
    named = {
        gain: headline(best, AggregatedCapacity(1000.0 / (1 + gain), 1.0, "ttft"))
        for gain in (-0.1, 0.0, 0.01, 0.1)
    }
    assert [gain for gain, text in named.items() if "3P:5D of 8" in text] == [0.1]
    assert "3P:5D of 8" in headline(best, None)
    today = {"east": (3, 1), "west": (3, 5)}
    verdict = headline(best, None, (), today)
    assert "3P:1D in east to 2P:2D" in verdict and "3P:5D in west to" not in verdict
    assert "east" not in headline(best, AggregatedCapacity(1000.0, 1.0, "ttft"), (), today)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--service", "nobody"), "service nobody: the scenario has no model of that name"),
        (
            ("--service", "m", "--instances", "1"),
            "--instances 1: give a whole number from 2 to 256.",
        ),
        (("--service", "m", "--prefill", "Z"), "prefill Z: m has no such pool. Choose from G"),
    ],
)
def test_what_makes_no_sense_is_refused(scenario: Path, words: tuple[str, ...], says: str) -> None:
    message = problem("pd-ratio", scenario, *words)
    assert says in message and "\n" not in message


def test_a_network_that_nobody_knows_is_asked_for(folder: Path) -> None:
    message = problem("pd-ratio", folder / "plan.yml", "--service", "m")
    assert "Give kv_transfer.gb_s" in message


def test_sizes_on_their_page(planner: User, folder: Path) -> None:
    run = ran(planner, folder / "plan.yml", Run.Kind.SIZE, isl=400, osl=30)
    (pool,) = run.result["pools"]
    assert abs(pool["prediction_error"]) < 0.5 and pool["predicted_rps"] > 0
    assert pool["latency_error"]["p95"] > pool["latency_error"]["median"] > 0
    assert pool["latency_bias"]["tbt"] < 0 and "46 random cases" in pool["latency_bias"]["basis"]
    shown = page(planner, run)
    assert pool["arrangement"] in text_of(shown)
    assert answer_of(runs_with_answers().get(pk=run.pk)) == last_report().answer  # as in lists
    section = next(s for s in last_report().sections if s.sheet == "Latencies")
    drawn = json_in(shown, f"{section.anchor}-1-data")
    chart = section.blocks[0]
    assert isinstance(chart, Chart) and chart.title.startswith("TTFT")
    assert [line["name"] for line in drawn["data"]] == [line.label for line in chart.series]
    assert [line.role for line in chart.series][2:] == [Role.LIMIT, Role.MEASURED]
    assert chart.series[3].y == (pool["ttft_ms"],) and chart.series[3].x == (pool["max_rps"],)
    rising = drawn["data"][0]["y"]
    assert rising == sorted(rising)


def test_bursts_are_sized_for(folder: Path) -> None:
    def rate(burstiness: str) -> float:
        words = ("--isl", 400, "--osl", 30, "--burstiness", burstiness)
        return float(answer("size", folder / "plan.yml", *words)["pools"][0]["max_rps"])

    assert rate("8") < rate("poisson") <= rate("0.2")
    message = problem("size", folder / "plan.yml", "--burstiness", "wild")
    assert "--burstiness wild: give poisson, trace" in message


def test_prefill_and_decode_columns_are_sized_in_their_role(scenario: Path) -> None:
    text = scenario.read_text()
    lines = text.splitlines()
    row_at = next(i for i, line in enumerate(lines) if "alpha_ms" in line)
    row_text = lines[row_at]
    lines[row_at] = "\n".join(
        row_text.replace("}", f", role: {role}}}") for role in ("prefill", "decode")
    )
    scenario.write_text("\n".join(lines) + "\n")
    pools = answer("size", scenario, "--isl", 400, "--osl", 30)["pools"]
    (table,) = (table for table in tables_of(last_report(), "Pools") if table.heads)
    shown = [row["Replicas"] for row in rows_of(table)]
    assert shown == [sum(pool["replicas_by_region"].values()) for pool in pools]
    first, second = pools
    assert (first["role"], second["role"]) == ("prefill", "decode")
    assert first["bound_by"] in ("ttft", "throughput") and first["tbt_ms"] is None
    assert second["bound_by"] in ("tbt", "throughput", "memory")
    result = answer("pd-ratio", scenario, "--service", "m", "--instances", 3)
    assert result["prefill"]["arrangement"] != result["decode"]["arrangement"]
    gpu = re.search(r"gpu: ([\w-]+)", row_text)[1]
    today = ", ".join(
        f"{{model: m, region: east, gpu: {gpu}, role: {role}, replicas: {count}}}"
        for role, count in (("prefill", 2), ("decode", 3))
    )
    fleet = f"fleet: {{startup_s: 60, today: [{today}]}}"
    scenario.write_text(scenario.read_text().replace("fleet: {startup_s: 60}", fleet))
    assert answer("pd-ratio", scenario, "--service", "m")["instances"] == 5


def test_the_pages_that_start_them(planner: User, viewer: User, folder: Path) -> None:
    document, _ = load_scenario(str(folder / "plan.yml"), lambda *_: None)
    kept: Scenario = scenario_create(owner=planner, document=document)
    client = signed_in(planner)
    for name, data, kind, options in (
        ("size", {"scenario": kept.pk, "isl": "400", "osl": "30"}, "size", {"isl": 400, "osl": 30}),
        (
            "pd-ratio",
            {"of": f"{kept.pk}:m", "instances": "4"},
            "pd-ratio",
            {"service": "m", "instances": 4},
        ),
    ):
        url = reverse(f"web:{name}")
        assert kept.name in client.get(url).content.decode()
        started = client.post(url, data)
        run = Run.objects.get(kind=kind)
        assert started.status_code == 302 and run.options == options
        assert kept.name in client.get(url).content.decode()
        refused = client.post(url, {**data, "isl": "many", "instances": "9" * 5000})
        text = refused.content.decode()
        assert refused.status_code == 400 and "give a whole number from" in text
        assert 'value="many"' in text or 'value="999' in text  # still in the form
        assert signed_in(viewer).post(url, data).status_code == 403
