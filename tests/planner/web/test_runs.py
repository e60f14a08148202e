"""A run from waiting to results, as the browser shows it."""

from __future__ import annotations

import csv
import io
import json
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
from planner.errors import Damaged
from planner.models import Run, User
from planner.selectors.runs import run_table
from planner.services.scenarios import scenario_create, scenario_run
from planner.storage import row_arrays
from planner.web.pages.kinds import PAGES
from planner.web.views import size_and_pd
from tests.planner.web.pages import json_in, signed_in, text_of
from tests.planner.web.study import DOCUMENT, LABELS, POOLS, completed_run


@pytest.fixture
def client(planner: User) -> Client:
    return signed_in(planner)


@pytest.fixture
def study(planner: User) -> Run:
    return completed_run(planner)


def url(run: Run) -> str:
    return reverse("web:run", args=[run.pk])


def with_an_answer(study: Run) -> str:
    """The sentence of a recommendation with its timetable, as results have them."""
    pool = {"region": "us-east", "replica": {"model": "8b", "arrangement": "G", "role": "mixed"}}
    rows = [
        {"begins": "2024-05-18T00:00:00Z", "replicas": [4]},
        {"begins": "2024-05-18T09:00:00Z", "replicas": [6]},
    ]
    study.result["recommended"] = {
        "policy": "lt-i", "label": "Planned (LT-I)", "follows_plan": True, "parameters": {},
        "sentence": "Run 8b: 4 in us-east from 00:00 UTC; survives the loss of one instance: no.",
        "timetable": {"pools": [pool], "rows": rows, "by_itself": False}, "begins": [],
    }  # fmt: skip
    study.save()
    return str(study.result["recommended"]["sentence"])


def test_results_begin_with_the_answer_and_warnings_come_after_it(
    client: Client, study: Run
) -> None:
    """A warning stood first, and a bold sentence that nobody could carry out."""
    warning, headline = study.result["warnings"][0], study.result["headline"]
    page = text_of(client.get(url(study)))
    assert page.index(headline) < page.index(warning) < page.index("GPU-hours saved")
    sentence = with_an_answer(study)
    page = text_of(client.get(url(study)))
    order = [sentence, headline, "What to run, when", "18 May 2024, 09:00 UTC 6", warning]
    assert [page.index(words) for words in order] == sorted(page.index(words) for words in order)
    home = text_of(client.get("/"))
    assert home.index(sentence) < home.index(warning)
    # What comes of it stands beside what to do, each by itself.
    what, facts = "Run 8b: 4 in us-east.", [{"of": "Cost", "words": "$9 a day", "before": ""}]
    study.result["recommended"] |= {"what": what, "facts": facts}
    study.save()
    for text in (text_of(client.get(url(study))), text_of(client.get("/"))):
        assert f"{what} Cost $9 a day" in text and sentence not in text
    # Where it misses a tier its card is no blue one.
    study.result["recommended"]["meets_slo"] = False
    study.save()
    for path, its in ((url(study), 'id="headline"'), ("/", 'id="latest"')):
        assert "bg-danger" in client.get(path).content.decode().split(its)[0][-800:]


def test_a_long_page_is_in_tabs_and_nothing_is_outside_of_them(client: Client, study: Run) -> None:
    html = client.get(url(study)).content.decode()
    tabs = html.split("data-tabs>")[1].split("</nav>")[0]
    links = re.findall(r'href="#([\w-]+)"', tabs)
    assert links[0] == "answer" and {"policies", "plan", "what-if", "sources"} <= set(links)
    assert re.findall(r'<section id="([\w-]+)" data-panel>', html) == links


def test_a_plan_by_itself_begins_with_its_sentence(client: Client, study: Run) -> None:
    sentence = with_an_answer(study)
    del study.result["recommended"]["timetable"]
    study.result["headline"] = ""
    study.save()
    assert sentence in text_of(client.get(url(study)))
    del study.result["recommended"]  # as results of before have it
    study.save()
    assert client.get(url(study)).status_code == 200


def test_a_timetable_is_there_to_copy(client: Client, study: Run) -> None:
    with_an_answer(study)
    html = client.get(url(study)).content.decode()
    assert 'data-copy="#timetable-text"' in html
    text = html.split('id="timetable-text">')[1].split("</pre>")[0]
    assert text == "begins,8b us-east G\n2024-05-18T00:00:00Z,4\n2024-05-18T09:00:00Z,6"


def test_good_news_is_no_warning(client: Client, study: Run) -> None:
    assert 'class="alert alert-info"' in client.get(url(study)).content.decode()
    # That a flat fleet beats the plan, the headline says where it is the one to take.
    study.result["warnings"] = ["Planned (LT-I) misses a tier."]
    study.save()
    assert 'class="alert alert-warning"' in client.get(url(study)).content.decode()


def test_what_a_result_rests_on_and_how_much_of_it_was_replayed_stand_at_its_top(
    client: Client, study: Run
) -> None:
    study.result["replayed"] = {"requests": 10, "cells": 2, "sentence": "Replayed on 10 of 20."}
    study.result["window"]["rank"] = {"sentence": "18 May 2024 is the quietest of 61 days."}
    study.result["assumptions"] = [
        {"what": "Prompt lengths", "value": "mean 1,155 tokens, cv 1", "provenance": "assumed",
         "source": "given by hand", "key": "traffic.sources.input_tokens"},
        {"what": "Price", "value": "$3", "provenance": "published", "source": "list", "key": "p"},
    ]  # fmt: skip
    study.save()
    page = text_of(client.get(url(study)))
    for words in (
        "Replayed on 10 of 20.",
        "is the quietest of 61 days",
        "2 inputs, of which 1 are assumed",
        "mean 1,155 tokens, cv 1",
    ):
        assert page.index(words) < page.index("GPU-hours saved"), words


def test_savings_are_against_the_baseline_of_the_run(client: Client, study: Run) -> None:
    page = text_of(client.get(url(study)))
    assert "200 GPU-h 50.0% less 200 GPU-h instead of 400 GPU-h" in page
    assert "$500 50.0% less $500 instead of $1,000" in page
    assert "80 kWh 50.0% less" in page
    assert "24 kg CO₂e 50.0% less" in page
    assert "80 kWh 20 kWh 24 kg" in page  # of it hosts, then carbon


def test_the_user_chooses_policy_and_baseline(client: Client, study: Run) -> None:
    answer = client.get(
        url(study) + "?baseline=flat-peak&policy=today",
        headers={"HX-Request": "true", "HX-Target": "savings"},
    )
    page = text_of(answer)
    assert "<html" not in answer.content.decode()
    assert "GPU-hours more" in page and "saved" not in page
    assert " 80 GPU-h 25.0% more 400 GPU-h instead of 320 GPU-h" in page


def test_a_choice_that_is_not_there_falls_back(client: Client, study: Run) -> None:
    page = text_of(client.get(url(study) + "?baseline=nonsense&policy=none&pool=mars"))
    assert "200 GPU-h instead of 400 GPU-h" in page


def test_each_saving_says_what_it_rests_on(client: Client, study: Run) -> None:
    html = client.get(url(study)).content.decode()
    cost = html[html.index('data-saving="cost_usd"') : html.index('data-saving="energy_kwh"')]
    assert ">assumed<" in cost and "Price of A100-80GB in us-east: assumed, a guess" in cost


def test_no_saving_claims_to_be_measured(client: Client, study: Run) -> None:
    for fact in study.result["provenance"]:
        fact["kind"] = "measured"
    study.save()
    html = client.get(url(study)).content.decode()
    cards = html[html.index("data-saving") : html.index("replica-chart")]
    assert cards.count(">modelled<") == 4 and ">measured<" not in cards


def test_the_replica_chart_holds_what_was_simulated(client: Client, study: Run) -> None:
    lines = {line["name"]: line for line in json_in(client.get(url(study)), "replica-data")["data"]}
    table = run_table(study, "replicas").filter(pl.col("policy") == "lt-i")
    total = table.group_by("time").agg(pl.col("ready").sum())["ready"]
    planned = lines["Planned (LT-I)"]
    # The last bin of demand lasts until the window's end, where it ended one bin early.
    assert str(lines["Demand"]["x"][-1])[:16] == study.result["window"]["end"][:16]
    assert planned["line"]["shape"] == "hv"
    assert max(planned["y"]) == total.max() and min(planned["y"]) == total.min()
    assert lines["Flat at peak"]["visible"] == "legendonly"
    flat = lines["Today's fleet"]
    assert len(set(flat["y"])) == 1
    # Wherever one points there is a value of every line.
    assert set(lines["Demand"]["x"][:-1]) <= set(flat["x"])


def test_the_charts_can_show_one_model_and_region(client: Client, study: Run) -> None:
    model, region = POOLS[1]
    answer = client.get(
        f"{url(study)}?pool={model} / {region}",
        headers={"HX-Request": "true", "HX-Target": "charts"},
    )
    (demand,) = [
        line for line in json_in(answer, "replica-data")["data"] if line["name"] == "Demand"
    ]
    (both,) = [
        line
        for line in json_in(client.get(url(study)), "replica-data")["data"]
        if line["name"] == "Demand"
    ]
    assert max(demand["y"]) == pytest.approx(max(both["y"]) * 2 / 3)
    forecast = {line["name"]: line for line in json_in(answer, "forecast-data")["data"]}
    assert max(forecast["Actual"]["y"]) == max(demand["y"])


def test_a_plan_says_what_the_error_of_its_profiles_does_to_it(client: Client, study: Run) -> None:
    page = text_of(client.get(url(study)))
    assert "± 12.0% TBT, configurations left out of the fit 6 7 5" in page
    assert "not known not checked against measurements 6 – –" in page


def test_tables_of_the_page(client: Client, study: Run) -> None:
    page = text_of(client.get(url(study)))
    assert page.index("Planned (LT-I) $500") < page.index("Today's fleet baseline $1,000")
    assert "met 97.00%" in page and "missed 90.00%" in page
    assert "120,000 119,990 4 6 0 longer than the model's context: 4" in page
    assert "The peak of us-east needs every replica it has. (5 of 24 periods)" in page
    assert "llama-3.1-8b us-east A100-80GB 4 +2 6" in page
    assert "TTFT (IW-F)" in page and "arima (2, 1, 1)" in page


def test_every_table_downloads_as_csv(client: Client, study: Run) -> None:
    for name in ("demand", "forecast", "replicas", "plan", "policies", "tiers"):
        answer = client.get(reverse("web:run-table", args=[study.pk, name]))
        assert answer["Content-Type"].startswith("text/csv")
        assert f'filename="run-{study.pk}-two-pools-{name}.csv"' in answer["Content-Disposition"]
        rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
        table = run_table(study, name)
        assert len(rows) == table.height and list(rows[0]) == table.columns
    assert client.get(reverse("web:run-table", args=[study.pk, "nothing"])).status_code == 404


def test_csv_times_carry_their_zone(client: Client, study: Run) -> None:
    text = client.get(reverse("web:run-table", args=[study.pk, "demand"])).content.decode()
    assert "2024-05-17T00:00:00Z" in text


def test_the_result_downloads_as_json(client: Client, study: Run) -> None:
    answer = client.get(reverse("web:run-result", args=[study.pk]))
    assert json.loads(answer.content) == study.result


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
    assert ('id="replica-chart"' in html) == (kind != "forecast")
    assert ('id="forecast-chart"' in html) == (kind != "simulate")
    assert "data-saving" not in html  # nothing to compare with


def run_store(run: Run) -> Any:
    from planner.storage import row_arrays

    return row_arrays.folder(run.store)


def test_a_forecast_of_a_trace_alone(client: Client, planner: User) -> None:
    run = completed_run(planner)
    store = run_store(run)
    series = pl.read_parquet(store / "forecast.parquet").with_columns(unit=pl.lit("requests"))
    for path in store.glob("*.parquet"):
        path.unlink()
    tokens = series.with_columns(pl.col("mean") * 50, unit=pl.lit("input_tokens"))
    pl.concat([series, tokens]).write_parquet(store / "series.parquet")
    row = {"model": "m", "region": "east", "tier": "chat", "method": "ensemble", "peak": 12.0,
           "peak_p90": 15.0, "peak_wape": 0.25, "reason": "ensemble: of late."}  # fmt: skip
    ahead = [row | {"unit": unit} for unit in ("requests", "input_tokens")]
    run.kind, run.result = Run.Kind.FORECAST, {"kind": "forecast", "series": ahead, "seconds": 1.0}
    run.save()
    page = client.get(url(run))
    figure = json_in(page, "forecast-data")
    assert figure["layout"]["yaxis"]["title"]["text"] == "requests per bin"
    html = page.content.decode()
    assert "<td>Requests</td>" in html and "<td>Input tokens</td>" in html
    assert "ensemble: of late." in html and "25.0%" in html
    figure = json_in(client.get(url(run) + "?unit=input_tokens"), "forecast-data")
    assert figure["layout"]["yaxis"]["title"]["text"] == "input tokens per bin"


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


def test_ends_without_results_are_told_in_words(client: Client, planner: User) -> None:
    words_by_state = {
        Run.State.FAILED: "Region east has no GPUs; add some.",
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


def test_a_waiting_run_is_cancelled_once(client: Client, planner: User) -> None:
    run = Run.objects.create(kind=Run.Kind.COMPARE, name="Chat", owner=planner)
    cancel = reverse("web:run-cancel", args=[run.pk])
    assert client.post(cancel)["Location"] == url(run)
    run.refresh_from_db()
    assert run.state == Run.State.CANCELLED
    again = client.post(cancel)
    assert again.status_code == 409 and "is over" in text_of(again)


def test_home_shows_the_latest_study_and_asks_only_while_something_runs(
    client: Client, study: Run
) -> None:
    answer = client.get("/")
    page = text_of(answer)
    assert study.result["headline"] in page and "200 GPU-h" in page
    assert "every 2s" not in answer.content.decode()
    names = [line["name"] for line in json_in(answer, "home-data")["data"]]
    assert names == ["Demand", LABELS["today"], LABELS["lt-i"]]
    Run.objects.create(kind=Run.Kind.COMPARE, name="Chat")
    assert "every 2s" in client.get("/").content.decode()


def test_home_tells_newcomers_what_to_do(client: Client) -> None:
    page = text_of(client.get("/"))
    assert "1. Upload a trace" in page and "3. Plan and compare" in page


def test_the_demo_link_shows_a_result_whatever_came_after(client: Client, planner: User) -> None:
    """It followed the latest run of anybody and any kind: a forecast, or a cancelled one."""
    from planner.inputs.demo.scenario import DEMO_NAME

    first = completed_run(planner)
    Run.objects.filter(pk=first.pk).update(name=DEMO_NAME)
    for kind, state in (("compare", "cancelled"), ("forecast", "completed"), ("compare", "failed")):
        Run.objects.create(owner=planner, kind=kind, state=state, name=DEMO_NAME)
    html = client.get("/").content.decode()
    assert f'data-demo-run="completed" data-demo-results="{url(first)}"' in html


def test_home_names_the_demo_run_for_scripts(client: Client, planner: User) -> None:
    from planner.inputs.demo.scenario import DEMO_NAME

    run = Run.objects.create(kind=Run.Kind.COMPARE, name=DEMO_NAME)
    html = client.get("/").content.decode()
    assert f'data-demo-run="pending" data-demo-results="{url(run)}"' in html


def test_uploads_do_not_push_studies_out_of_what_is_recent(client: Client) -> None:
    Run.objects.create(kind=Run.Kind.PLAN, name="A plan of chat")
    for i in range(9):
        Run.objects.create(kind=Run.Kind.INGEST, name=f"file-{i}.csv")
    page = text_of(client.get("/activity/"))
    assert "A plan of chat" in page and "file-" not in page
    assert "file-8.csv" in text_of(client.get(reverse("web:runs")))  # where all are


def test_home_hints_at_a_missing_worker(client: Client) -> None:
    run = Run.objects.create(kind=Run.Kind.COMPARE, name="Chat")
    assert "is the worker running" not in text_of(client.get("/activity/"))
    Run.objects.filter(pk=run.pk).update(created_at=timezone.now() - timedelta(minutes=2))
    assert "is the worker running" in text_of(client.get("/activity/"))


def test_pages_of_lists_take_a_fixed_number_of_queries(
    client: Client, planner: User, django_assert_max_num_queries: Any
) -> None:
    for i in range(30):
        Run.objects.create(kind=Run.Kind.COMPARE, name=f"Chat {i}", owner=planner)
    for address in ("/", "/runs/", "/scenarios/", "/traces/"):
        with django_assert_max_num_queries(14):
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


def test_models_of_scenarios_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of P/D ratios read a hundred scenarios anew at each visit: a second."""
    assert size_and_pd._models(DOCUMENT) == ("llama-3.1-8b",)
    monkeypatch.setattr(size_and_pd, "parse", None)
    assert size_and_pd._models(DOCUMENT) == ("llama-3.1-8b",)
    assert size_and_pd._models.cache_info().maxsize


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
        with pytest.raises(Damaged, match="'basis'"):
            row_arrays.arrays_read("runs/1", "basis")
