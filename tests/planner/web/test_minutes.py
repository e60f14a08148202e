"""The results page by the minute, by group and by kind of hour."""

from typing import Any

import polars as pl
import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from planner.models import Run
from planner.selectors.runs import run_table
from planner.storage import row_arrays
from tests.planner.web.pages import json_in, text_of
from tests.planner.web.study import POOLS


def part(client: Client, run: Run, name: str, **chosen: str) -> HttpResponse:
    asked = {"part": name, **chosen}
    headers = {"HX-Request": "true", "HX-Target": name}
    return client.get(reverse("web:run", args=[run.pk]), asked, headers=headers)


def lines(answer: HttpResponse, chart: str) -> dict[str, Any]:
    return {line["name"]: line for line in json_in(answer, f"minute-{chart}-data")["data"]}


def test_all_pools_are_summed_and_one_can_be_chosen(client: Client, study: Run) -> None:
    table = run_table(study, "replicas").filter(pl.col("policy") == "flat-peak")
    both = lines(part(client, study, "minutes", policy="flat-peak"), "states")["Serving"]
    assert max(both["y"]) == pytest.approx(table["ready"].max() * 2, abs=1e-3)
    assert "stackgroup" in both
    name = " / ".join(POOLS[1])
    answer = part(client, study, "minutes", policy="flat-peak", pool=name)
    states = lines(answer, "states")
    assert max(states["Serving"]["y"]) == pytest.approx(max(both["y"]) / 2, abs=1e-3)
    assert "Starting" not in states  # nothing started: no line
    shares = lines(answer, "shares")
    assert set(shares["Iterating"]["y"]) == {0.6} and set(shares["KV memory"]["y"]) == {0.5}
    assert max(lines(answer, "power")["Power"]["y"]) == pytest.approx(
        states["Serving"]["y"][0] / 2, abs=1e-3
    )


def test_pools_of_one_model_and_region_are_told_apart(client: Client, study: Run) -> None:
    table = run_table(study, "replicas")
    other = table.with_columns(arrangement=pl.lit("4 x A100-80GB, decode"), ready=pl.lit(1.0))
    row_arrays.tables_write(study.store, {"replicas": pl.concat([table, other])})
    name = f"{' / '.join(POOLS[0])} / 4 x A100-80GB, decode"
    answer = part(client, study, "minutes", policy="lt-i", pool=name)
    assert f'<option value="{name}" selected>{name}</option>' in answer.content.decode()
    assert set(lines(answer, "states")["Serving"]["y"]) == {1.0}


def test_a_choice_that_is_not_there_falls_back(client: Client, study: Run) -> None:
    page = text_of(part(client, study, "minutes", policy="none", pool="mars"))
    assert "15 min" in page
    rows = text_of(part(client, study, "groups", policy="none", tier="mars", model="<x>"))
    assert "93.5%" in rows and "<x>" not in rows


def test_older_runs_without_these_tables_still_show(client: Client, study: Run) -> None:
    for name in ("groups", "replicas"):
        (row_arrays.folder(study.store) / f"{name}.parquet").unlink()
    page = client.get(reverse("web:run", args=[study.pk])).content.decode()
    assert 'id="policies"' in page and 'id="minutes"' not in page
    assert part(client, study, "minutes").status_code == 200
    assert part(client, study, "groups").status_code == 200
