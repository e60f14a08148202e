"""What a plan's and a front's pages show beyond the decisions."""

from django.test import Client

from planner.inputs.scenario.document import parse
from planner.models import Run
from planner.outputs.reports import run_report
from tests.planner.reports import rows_of, tables_of
from tests.planner.web.pages import json_in, text_of


def test_an_outlook_has_a_row_by_month_and_says_what_does_not_fit(
    client: Client, study: Run
) -> None:
    month = {
        "month": "2027-01", "days": 31.0, "growth": 1.0, "status": "optimal", "gpu_hours": 744.0,
        "cost_usd": 1488.0, "on_demand_usd": 1480.0, "spot_usd": 0.0, "starts_usd": 8.0,
        "cost_committed_usd": 900.0, "energy_kwh": 300.0, "carbon_kg": 90.0, "mean_replicas": 1.0,
        "peak_replicas": 2, "peak_gpus": 2, "conflict": "",
    }  # fmt: skip
    lacking = dict.fromkeys(month) | {
        "month": "2027-02", "days": 28.0, "growth": 9.0, "status": "infeasible",
        "conflict": "east has too few GPUs.",
    }  # fmt: skip
    take = {
        "region": "east", "gpu": "G", "term": "one_year", "gpus": 1, "peak_gpus": 2,
        "on_demand_usd_per_gpu_hour": 2.0, "committed_usd_per_gpu_hour": 1.2, "pays_from": 0.6,
        "least_use": 1.0, "cost_on_demand_usd": 1480.0, "cost_usd": 892.0, "saving_usd": 588.0,
        "mean_gpus": 1.0,
    }  # fmt: skip
    study.kind = Run.Kind.OUTLOOK
    study.result |= {
        "kind": "outlook", "headline": "$1,488 for the quarter.", "horizon": "quarter",
        "months": [month, lacking], "basis": ["Planned, not replayed."],
        "totals": {"cost_usd": 1488.0, "cost_committed_usd": 900.0, "gpu_hours": 744.0,
                   "energy_kwh": 300.0, "carbon_kg": 90.0, "days": 31.0},
        "commitments": [take], "recommended_commitments": [take],
        "use": [{"region": "east", "gpu": "G", "gpus": 1, "in_use": 1.0,
                 "pays_below_usd_per_gpu_hour": 2.0}],
    }  # fmt: skip
    study.save()
    answer = client.get(f"/runs/{study.pk}/")
    page = text_of(answer)
    assert "$1,488 for the quarter." in page and "Planned, not replayed." in page
    report = run_report(study)
    (months,), (offers,) = tables_of(report, "Months"), tables_of(report, "Commitments")
    first, second = rows_of(months)
    assert (first["Cost"], second["Cost"]) == (1488.0, None)
    assert second["No plan"] == "east has too few GPUs."
    (offer,) = rows_of(offers)
    assert (offer["Commit"], offer["Peak"], offer["Saving"]) == (1, 2, 588.0)
    assert offers.marked == {0}
    figure = json_in(answer, "months-1-data")
    assert [trace["name"] for trace in figure["data"]] == [
        "On demand",
        "Starts",
        "With commitments",
    ]
    # Nothing of it was replayed: the last month that has a plan is, by one click.
    assert "a week of 2027-01" in page
    month["growth"] = 3.0
    study.save()
    answer = client.post(f"/runs/{study.pk}/replay-month/")
    replay = Run.objects.get(pk=int(answer["Location"].strip("/").rpartition("/")[2]))
    asked = parse(replay.document)
    assert replay.kind == Run.Kind.COMPARE and replay.name.endswith("a week of 2027-01")
    assert (asked.horizon.start, asked.horizon.duration_s) == ("end", 7 * 86_400)
    assert asked.traffic.growth.factor == 3.0 and asked.traffic.max_replayed <= 2_000_000
    study.kind = Run.Kind.PLAN
    study.save()
    assert client.post(f"/runs/{study.pk}/replay-month/").status_code == 400


def test_a_backtest_leads_with_its_verdict_and_shows_every_forecaster(
    client: Client, study: Run
) -> None:
    figures = {"cost_usd": 96.0, "gpu_hours": 40.0, "starts": 3.0, "stops": 2.0, "spare": 0.0,
               "attainment": {"chat": 0.95}}  # fmt: skip
    row = figures | {
        "order": "", "equal": True, "at": "P70", "replays": 4, "as_run": figures,
        "quantile": [{"tier": "interactive", "quantile": 0.8, "times": 1.0, "why": "It covers."}],
        "as_run_cost_usd": 99.0, "as_run_spare": 0.01, "confirmed": None, "plan_usd": 95.0,
        "hindsight_usd": 90.0, "hindsight_bound_usd": 89.9, "regret": 0.055, "served": 0.98,
        "wape": 0.1, "peak_wape": 0.1, "bias": -0.02, "coverage80": 0.8, "fit_seconds": 0.1,
    }  # fmt: skip
    study.kind = Run.Kind.BACKTEST
    study.result |= {
        "kind": "backtest", "verdict": "ARIMA saves 4% over last value.", "goals": {"chat": 0.95},
        "matched_on": "replay", "how": "Attainment is that of replays.", "best": "arima",
        "methods": {
            "last-value": row | {"method": "last-value", "cost_usd": 100.0, "equal": False},
            "arima": row | {"method": "arima"},
        },
        "beside": {"flat-min": figures | {"name": "flat-min", "label": "Smallest flat fleet",
                                          "word": "sized in hindsight", "meets": True,
                                          "value": None, "instances": 6}},
        "left_out": ["auto is left out: too short."],
    }  # fmt: skip
    study.save()
    answer = client.get(f"/runs/{study.pk}/")
    page = text_of(answer)
    assert "ARIMA saves 4%" in page and "auto is left out" in page
    report = run_report(study)
    (methods,), (baselines,) = tables_of(report, "Forecasters"), tables_of(report, "Baselines")
    first, second = rows_of(methods)
    assert str(first["Forecaster"]) == "arima" and methods.marked == {0}  # equal ones first
    assert (first["Cost"], first["Cost, tuned earlier"]) == (96.0, 99.0)
    assert str(second["Forecaster"]).startswith("last-value")
    (flat,) = rows_of(baselines)
    assert (flat["Policy"], flat["Replicas"]) == ("Smallest flat fleet", 6)
    figure = json_in(answer, "forecasters-1-data")
    assert [trace["y"] for trace in figure["data"]] == [[96.0, 100.0], [99.0, 99.0], [96.0, 96.0]]
