"""A run from waiting to results, as the browser shows it."""

import csv
import io
import re
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from django.template.loader import get_template
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from planner.domain.kinds.registry import KINDS
from planner.domain.report import Meaning
from planner.domain.reports.policies import WORK_COLUMNS
from planner.errors import DamagedFile
from planner.models import Run, User
from planner.outputs.reports import run_report
from planner.selectors.runs import run_table
from planner.services.scenarios import scenario_create, scenario_run
from planner.storage import row_arrays
from planner.web.pages.kinds import PAGES
from tests.planner.reports import rows_of, tables_of
from tests.planner.web.pages import json_in, text_of
from tests.planner.web.study import DOCUMENT, LABELS, POOLS, completed_run


def url(run: Run) -> str:
    return reverse("web:run", args=[run.pk])


def recommended(study: Run) -> None:
    """Give the run a recommendation with its schedule, as results have them."""
    pool = {"region": "us-east", "replica": {"model": "8b", "arrangement": "G", "role": "mixed"}}
    rows = [
        {"begins": "2024-05-18T00:00:00Z", "replicas": [4]},
        {"begins": "2024-05-18T09:00:00Z", "replicas": [6]},
    ]
    study.result["recommended"] = {
        "policy": "lt-i", "label": "Planned (LT-I)", "follows_plan": True, "parameters": {},
        "sentence": "It passes.", "assurance": "balanced", "qualifies": True,
        "timetable": {"pools": [pool], "rows": rows, "by_itself": False}, "begins": [],
    }  # fmt: skip
    study.save()


def test_a_report_is_kept_until_its_run_changes(study: Run) -> None:
    recommended(study)
    report = run_report(Run.objects.get(pk=study.pk))
    assert run_report(study) is report
    study.result["recommended"]["label"] = "Renamed"
    study.save()
    changed = run_report(study)
    assert changed is not report
    name = row_arrays.tables_list(study.store)[0]
    path = row_arrays.table_path(study.store, name)
    pl.read_parquet(path).head(0).write_parquet(path)
    assert run_report(study) is not changed


def test_tiles_have_the_figures_of_the_recommended_policy(study: Run) -> None:
    recommended(study)
    facts = {fact.label: fact for fact in run_report(study).facts}
    figures = study.result["policies"]["lt-i"]
    assert facts["Cost per day"].value == figures["cost_usd"]
    assert facts["Cost per day"].change.startswith("−50%")
    assert facts["Energy per day"].value == figures["energy_kwh"]
    (attainment,) = [fact for label, fact in facts.items() if label.startswith("SLO")]
    assert attainment.value == figures["slo_attainment"]["IW-N"]  # the tier that is worst off
    assert attainment.meaning is Meaning.MISSED


def test_a_result_without_a_recommendation_has_a_page(client: Client, study: Run) -> None:
    recommended(study)
    del study.result["recommended"]["timetable"]
    study.result["headline"] = ""
    study.save()
    assert client.get(url(study)).status_code == 200
    del study.result["recommended"]  # as results of before have it
    study.save()
    assert client.get(url(study)).status_code == 200


def test_a_schedule_is_there_to_copy_and_to_preview(client: Client, study: Run) -> None:
    recommended(study)
    html = client.get(url(study)).content.decode()
    schedule = html[html.index('id="schedule"') : html.index('id="policies"')]
    assert "data-copy-table" in schedule and 'id="preview"' in schedule
    address = reverse("web:run-export", args=[study.pk])
    shown = client.get(f"{address}?preview=1&to=csv")
    assert "attachment" not in shown.headers.get("Content-Disposition", "")
    assert "period_start" in text_of(shown)
    refused = text_of(client.get(f"{address}?preview=1&to=nothing"))
    assert "nothing" in refused


def test_assumptions_with_the_largest_effect_come_first(client: Client, study: Run) -> None:
    study.result["assumptions"] = [
        {"what": "Price", "value": "$3", "provenance": "published", "source": "list", "key": "p"},
        {"what": "Answer lengths", "value": "mean 90 tokens", "provenance": "assumed",
         "source": "given by hand", "key": "traffic", "matters": "+1%", "effect": 0.01},
        {"what": "Prompt lengths", "value": "mean 1,155 tokens", "provenance": "assumed",
         "source": "given by hand", "key": "traffic", "matters": "+20%", "effect": 0.2},
    ]  # fmt: skip
    study.save()
    (rows,) = tables_of(run_report(study), "Assumptions")
    assert [row["Input"] for row in rows_of(rows)] == ["Prompt lengths", "Answer lengths", "Price"]
    assert "mean 1,155 tokens" in text_of(client.get(url(study)))


def test_the_charts_hold_what_was_simulated(client: Client, study: Run) -> None:
    recommended(study)
    answer = client.get(url(study))
    table = run_table(study, "replicas").filter(pl.col("policy") == "lt-i")
    total = table.group_by("time").agg(pl.col("ready").sum())["ready"]
    areas = json_in(answer, "over-time-2-data")["data"]
    stacked = [sum(counts) for counts in zip(*(area["y"] for area in areas), strict=True)]
    assert (max(stacked), min(stacked)) == (total.max(), total.min())
    assert len(areas) == len(POOLS)
    lines = {line["name"]: line for line in json_in(answer, "over-time-1-data")["data"]}
    # The last bin lasts until the window's end.
    assert str(lines["Demand"]["x"][-1])[:16] == study.result["window"]["end"][:16]


def test_a_plan_says_what_the_error_of_its_profiles_does_to_it(study: Run) -> None:
    (rows,) = tables_of(run_report(study), "Profiles")
    first, second = rows_of(rows)
    assert (first["Error"], first["Replicas"]) == (0.12, 6)
    assert (first["Replicas if profile slower"], first["Replicas if profile faster"]) == (7, 5)
    assert (second["Error"], second["Replicas if profile slower"]) == (None, None)


def test_tables_of_the_page(client: Client, study: Run) -> None:
    page = text_of(client.get(url(study)))
    compared, *details = (*tables_of(run_report(study), "Policies"),
                          *tables_of(run_report(study), "Simulation"))  # fmt: skip
    assert [row["Policy"] for row in rows_of(compared)] == [
        LABELS[name] for name in study.result["ranking"]
    ]
    latencies, work = map(rows_of, details)
    tiers = len(study.result["policies"][study.result["ranking"][0]]["slo_attainment"])
    assert len(latencies) % tiers == 0
    assert work[0][WORK_COLUMNS["busy_gpu_hours"]] == 120.0
    assert work[0][WORK_COLUMNS["reject_reasons"]] == "longer than the model's context: 4"
    assert "The peak of us-east needs every replica it has." in page
    assert "llama-3.1-8b us-east 1 x A100-80GB 4 +2 6" in page


def test_every_table_downloads_as_csv(client: Client, study: Run) -> None:
    for name in ("demand", "forecast", "replicas", "plan", "policies", "tiers"):
        answer = client.get(reverse("web:run-table", args=[study.pk, name]))
        assert answer["Content-Type"].startswith("text/csv")
        assert f'filename="run-{study.pk}-two-pools-{name}.csv"' in answer["Content-Disposition"]
        rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
        table = run_table(study, name)
        assert len(rows) == table.height and list(rows[0]) == table.columns
    assert client.get(reverse("web:run-table", args=[study.pk, "nothing"])).status_code == 404


@pytest.mark.parametrize("kind", ["forecast", "plan", "simulate"])
def test_other_kinds_show_the_parts_they_have(client: Client, planner: User, kind: str) -> None:
    kept = {
        "forecast": ({"window", "forecast", "notes", "seconds"}, {"demand", "forecast"}),
        "plan": ({"window", "forecast", "plan", "seconds"}, {"demand", "forecast", "plan"}),
        "simulate": (
            {"window", "policies", "ranking", "seconds"},
            {"demand", "replicas", "policies", "tiers"},
        ),
    }[kind]
    run = completed_run(planner)
    run.kind = kind
    run.result = {key: run.result[key] for key in kept[0]}
    if kind == "simulate":
        run.result["policies"] = {"lt-i": run.result["policies"]["lt-i"]}
    run.save()
    store = run_store(run)
    for path in store.glob("*.parquet"):
        if path.stem not in kept[1]:
            path.unlink()
    answer = client.get(url(run))
    html = answer.content.decode()
    assert answer.status_code == 200
    assert 'id="over-time-1"' in html
    assert ('id="over-time-2"' in html) == (kind != "forecast")
    assert "alternative=" not in html  # nothing to choose from


def run_store(run: Run) -> Any:
    from planner.storage import row_arrays

    return row_arrays.folder(run.store)


def test_a_forecast_of_a_trace_alone(client: Client, planner: User) -> None:
    run = completed_run(planner)
    store = run_store(run)
    series = pl.read_parquet(store / "forecast.parquet").with_columns(unit=pl.lit("requests"))
    for path in store.glob("*.parquet"):
        path.unlink()
    largest = series.group_by("time").agg(pl.col("mean").sum())["mean"].max()
    tokens = series.with_columns(pl.col("mean") * 50, unit=pl.lit("input_tokens"))
    pl.concat([series, tokens]).write_parquet(store / "series.parquet")
    row = {"model": "m", "region": "east", "tier": "chat", "method": "ensemble", "peak": 12.0,
           "peak_p90": 15.0, "peak_wape": 0.25, "reason": "ensemble: of late."}  # fmt: skip
    ahead = [row | {"unit": unit} for unit in ("requests", "input_tokens")]
    run.kind, run.result = Run.Kind.FORECAST, {"kind": "forecast", "series": ahead, "seconds": 1.0}
    run.save()
    page = client.get(url(run))
    for chart, unit, factor in ((1, "requests per bin", 1), (2, "input tokens per bin", 50)):
        lines = {line["name"]: line for line in json_in(page, f"over-time-{chart}-data")["data"]}
        assert max(lines["Forecast"]["y"]) == pytest.approx(factor * largest)
        assert unit in page.content.decode()
    rows = rows_of(*tables_of(run_report(run), "Series"))
    assert [row["Unit"] for row in rows] == ["requests", "input tokens"]
    assert rows[0]["Why"] == "ensemble: of late." and rows[0]["Peak WAPE"] == 0.25


def test_a_run_that_goes_on_is_asked_after_each_second(client: Client, planner: User) -> None:
    run = Run.objects.create(
        kind=Run.Kind.COMPARE, state=Run.State.RUNNING, name="Chat", progress=0.42, owner=planner,
        stage="Planning <b>3</b>", log="10:00 begun",
        started_at=timezone.now() - timedelta(seconds=42),
    )  # fmt: skip
    answer = client.get(url(run))
    assert 'hx-trigger="every 1s"' in answer.content.decode()
    assert "Planning <b>3</b>" in text_of(answer)  # as text, not as markup
    assert "42% done, about" in text_of(answer) and "left ·" in text_of(answer)
    part = client.get(url(run), headers={"HX-Request": "true", "HX-Target": "progress"})
    assert 'value="42"' in part.content.decode() and "<html" not in part.content.decode()
    Run.objects.filter(pk=run.pk).update(state=Run.State.COMPLETED)
    part = client.get(url(run), headers={"HX-Request": "true", "HX-Target": "progress"})
    assert part["HX-Refresh"] == "true"


def test_a_comparison_shows_its_first_answer_until_it_ends(client: Client, planner: User) -> None:
    preview = {
        "answer": {
            "pools": [{"pool": "8b in east on 2 x H100", "fewest": 3, "most": 17}],
            "cost_usd": 1234.0, "gpu_hours": 56.0, "attainment": {"chat": 0.966},
        },
        "test_days": [
            {"name": "Past: Monday", "level": "economy", "passes": {"LT-I": True, "Static": False}},
            {"name": "Crowd", "level": "safe", "passes": {}},
        ],
        "assurance": {"economy": {
            "policy": "lt-g", "label": "LT-G", "parameters": {"load_factor": 0.6},
            "cost_usd": 987.0, "qualifies": True, "failing": [], "spare": False,
            "expected": {
                "cost_usd": {"mean": 987.0, "low": 900.0, "high": 1_100.0}, "attainment": {},
            },
        }},
    }  # fmt: skip
    run = Run.objects.create(
        kind=Run.Kind.COMPARE, state=Run.State.RUNNING, owner=planner, started_at=timezone.now(),
        result={"preview": preview},
    )  # fmt: skip
    shown = text_of(client.get(url(run)))
    for value in ("3 to 17", "$1,234", "96.6%", "Past: Monday", "passes", "fails", "Crowd", "987"):
        assert value in shown
    api = client.get(reverse("api:run", args=[run.pk])).json()
    assert api["preview"] == preview
    Run.objects.filter(pk=run.pk).update(state=Run.State.FAILED, result={})
    assert client.get(reverse("api:run", args=[run.pk])).json()["preview"] is None


def test_ends_without_results_are_told_in_words(client: Client, planner: User) -> None:
    words_by_state = {
        Run.State.FAILED: "Region east has no GPUs. Add some.",
        Run.State.ERRORED: "An error of the program stopped this run",
        Run.State.CANCELLED: "was cancelled",
    }
    for state, words in words_by_state.items():
        problem = words if state != Run.State.CANCELLED else ""
        run = Run.objects.create(
            kind=Run.Kind.COMPARE, state=state, name="Chat", problem=problem,
            traceback="Traceback: secret", finished_at=timezone.now(),
        )  # fmt: skip
        answer = client.get(url(run))
        assert words in text_of(answer)
        assert "every 1s" not in answer.content.decode()
        assert "secret" not in answer.content.decode()
        if state == Run.State.ERRORED:
            assert f"run {run.pk}" in text_of(answer)


def test_home_shows_the_latest_study_and_asks_only_while_something_runs(
    client: Client, study: Run
) -> None:
    answer = client.get("/")
    page = text_of(answer)
    assert "$500" in page and "80 kWh" in page
    assert "every 2s" not in answer.content.decode()
    assert "Demand" in [line["name"] for line in json_in(answer, "over-time-1-data")["data"]]
    Run.objects.create(kind=Run.Kind.COMPARE, name="Chat")
    assert "every 2s" in client.get("/").content.decode()


def test_the_demo_link_shows_a_result_whatever_came_after(client: Client, planner: User) -> None:
    """It followed the latest run of anybody and any kind: a forecast, or a cancelled one."""
    from planner.inputs.demo import DEMO_NAME

    first = completed_run(planner)
    Run.objects.filter(pk=first.pk).update(name=DEMO_NAME)
    for kind, state in (("compare", "cancelled"), ("forecast", "completed"), ("compare", "failed")):
        Run.objects.create(owner=planner, kind=kind, state=state, name=DEMO_NAME)
    html = client.get("/").content.decode()
    assert f'data-demo-run="completed" data-demo-results="{url(first)}"' in html
    Run.objects.all().delete()
    waiting = Run.objects.create(kind=Run.Kind.COMPARE, name=DEMO_NAME)
    html = client.get("/").content.decode()
    assert f'data-demo-run="pending" data-demo-results="{url(waiting)}"' in html


def test_pages_of_lists_take_a_fixed_number_of_queries(
    client: Client, planner: User, django_assert_max_num_queries: Any
) -> None:
    for i in range(30):
        Run.objects.create(kind=Run.Kind.COMPARE, name=f"Chat {i}", owner=planner)
    for address in ("/", "/runs/", "/scenarios/", "/traces/"):
        with django_assert_max_num_queries(20):
            assert client.get(address).status_code == 200


def test_every_request_is_kept_where_asked_for_and_taken_as_parquet(
    client: Client, study: Run
) -> None:
    table = pl.DataFrame({"ttft_ms": [12.5, None], "met": [True, False]})
    row_arrays.tables_write(study.store, {"requests": table})
    link = reverse("web:run-parquet", args=[study.pk, "requests"])
    page = client.get(url(study)).content.decode()
    assert f'href="{link}"' in page and "requests.csv" not in page
    answer = client.get(link)
    assert answer["Content-Type"] == "application/vnd.apache.parquet"
    body = io.BytesIO(b"".join(answer.streaming_content))  # type: ignore[attr-defined]
    assert pl.read_parquet(body).equals(table)
    assert client.get(reverse("web:run-parquet", args=[study.pk, "none"])).status_code == 404


def test_a_simulation_is_asked_for_with_its_requests(client: Client, planner: User) -> None:
    kept = scenario_create(owner=planner, document=DOCUMENT)
    start = reverse("web:scenario-run", args=[kept.pk]) + "?policy=flat-peak"
    for fields in ({"requests": "1"}, {}):
        client.post(start, {"kind": "simulate", **fields})
        run = Run.objects.order_by("-pk")[0]
        assert run.options == {"policy": "flat-peak"} | ({"requests": True} if fields else {})


def test_a_run_that_failed_is_run_again_with_its_options(client: Client, planner: User) -> None:
    kept = scenario_create(owner=planner, document=DOCUMENT)
    options = {"policies": ["flat-peak", "lt-i"], "seed": 4}
    first = scenario_run(scenario=kept, owner=planner, kind="compare", options=options)
    Run.objects.filter(pk=first.pk).update(state=Run.State.FAILED, problem="No plan.")
    page = client.get(url(first)).content.decode()
    hidden = re.findall(r'<input type="hidden" name="(policies|seed|kind)" value="([^"]+)">', page)
    posted: dict[str, list[str]] = {}
    for name, value in hidden:
        posted.setdefault(name, []).append(value)
    client.post(reverse("web:scenario-run", args=[kept.pk]), posted)
    assert Run.objects.order_by("-pk")[0].options == options


def test_every_kind_of_run_has_its_page() -> None:
    assert PAGES.keys() == KINDS.keys()
    for page in PAGES.values():
        get_template(f"web/runs/{page.template}.html")


def test_a_damaged_table_of_a_run_is_a_sentence(client: Client, study: Run) -> None:
    """A disk or a hand cut its files short: neither page, table nor file is a server error."""
    for path in row_arrays.folder(study.store).glob("*.parquet"):
        path.write_bytes(path.read_bytes()[:-20])
    name = row_arrays.tables_list(study.store)[0]
    for address in (url(study), f"/api/v1/runs/{study.pk}/tables/{name}/"):
        answer = client.get(address)
        assert answer.status_code == 409, address
        assert "is damaged and cannot be read; carry the run out again" in text_of(answer)


def test_damaged_arrays_of_a_run_are_a_sentence(settings: Any, tmp_path: Any) -> None:
    settings.HEADROOM_DATA_DIR = tmp_path
    row_arrays.arrays_write("runs/1", "basis", {"x": np.arange(1000)})
    path = tmp_path / "runs/1/basis.npz"
    content = path.read_bytes()
    for spoilt in (content[:40], content[:-30], b"", content[:200] + b"?" * 200 + content[400:]):
        path.write_bytes(spoilt)
        with pytest.raises(DamagedFile, match="'basis'"):
            row_arrays.arrays_read("runs/1", "basis")
