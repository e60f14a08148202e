"""Traces: the upload, the account of what was read, the charts."""

import gzip
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from planner.inputs.ingest import IngestOptions
from planner.models import Run, Trace, User
from planner.outputs.render.figure import GREY
from planner.services.traces import trace_ingest_path
from planner.services.worker import run_execute
from tests.planner.web.pages import json_in, text_of

UPLOAD = "/traces/upload/"
ROWS = "\n".join(f"2023-11-16 18:15:{s:02d}.0000000,{100 + s},{10 + s}" for s in range(60))
AZURE = f"TIMESTAMP,ContextTokens,GeneratedTokens\n{ROWS}\n2023-11-16 18:20:00,-5,1\n"


def send(client: Client, data: bytes | str, name: str = "hour.csv", **fields: str) -> object:
    """As upload.js sends it."""
    content = data.encode() if isinstance(data, str) else data
    return client.post(
        UPLOAD,
        {"file": SimpleUploadedFile(name, content), **fields},
        headers={"Accept": "application/json"},
    )


def test_an_upload_is_kept_and_then_read(client: Client) -> None:
    before = text_of(client.get(UPLOAD))
    assert "by this workspace: 0 bytes, by you: 0 bytes. Free: 100 GB" in before
    answer = send(client, AZURE)
    assert answer.json() == {"url": "/traces/hour/"}
    run = Run.objects.get()
    assert (run.kind, run.state) == ("ingest", "pending")
    waiting = client.get("/traces/hour/")
    assert "Waiting" in text_of(waiting) and "every 1s" in waiting.content.decode()
    assert run_execute(run_id=run.pk).problem == ""
    done = client.get("/traces/hour/", headers={"HX-Request": "true"})
    assert done["HX-Refresh"] == "true"


def test_the_charts_hold_every_request_and_token(client: Client) -> None:
    send(client, AZURE)
    run_execute(run_id=Run.objects.get().pk)
    page = client.get("/traces/hour/")
    for name, total in (("requests", 60), ("input_tokens", sum(range(100, 160)))):
        (line,) = json_in(page, f"{name}-data")["data"]
        assert sum(line["y"]) == pytest.approx(total)  # bins of one second
        assert json_in(page, f"{name}-data")["layout"]["yaxis"]["title"]["text"].endswith("/s")


def test_a_gap_in_a_demand_file_is_a_hole_in_its_line(
    client: Client, planner: User, tmp_path: Path
) -> None:
    path = tmp_path / "bins.csv"
    rows = [f"2024-05-01T00:{m:02d}:00Z,{m % 9}" for m in range(20) if m != 7]
    path.write_text("time,requests\n" + "\n".join(rows) + "\n")
    trace_ingest_path(path=path, options=IngestOptions(), owner=planner)
    (line,) = json_in(client.get("/traces/bins/"), "requests-data")["data"]
    assert line["y"][7] is None and len(line["y"]) == 20
    assert line["y"][6] == pytest.approx(6 / 60)


def labelled(folder: Path, planner: User) -> None:
    """Ten days of 9 models in 3 regions for 2 tiers; nothing came for two hours of the fourth."""
    rng = np.random.default_rng(1)
    arrival = np.sort(rng.uniform(0, 10 * 86_400, 60_000))
    arrival = arrival[(arrival < 3.5 * 86_400) | (arrival > 3.5 * 86_400 + 7200)]
    many = len(arrival)
    table = {
        "arrival": 1_714_521_600 + arrival,
        "input_tokens": rng.integers(100, 3000, many),
        "output_tokens": rng.integers(10, 300, many),
        "model": rng.choice([f"model-{n}" for n in range(9)], many),
        "region": rng.choice(["east", "west", "south"], many, p=[0.5, 0.3, 0.2]),
        "tier": rng.choice(["fast", "batch"], many, p=[0.8, 0.2]),
    }
    path = folder / "fleet.parquet"
    pl.DataFrame(table).write_parquet(path)
    trace_ingest_path(path=path, options=IngestOptions(), owner=planner)


def test_a_label_has_one_colour_in_all_charts_and_others_come_last(
    client: Client, planner: User, tmp_path: Path
) -> None:
    labelled(tmp_path, planner)
    page = client.get("/traces/fleet/")
    lines = {name: json_in(page, f"{name}-data")["data"] for name in ("requests", "input_tokens")}
    colours = {
        name: {line["name"]: line["line"]["color"] for line in drawn if "line" in line}
        for name, drawn in lines.items()
    }
    assert colours["requests"] == colours["input_tokens"]
    names = [line["name"] for line in lines["requests"]]
    assert names[5:] == ["4 others", "Total", "Outage: not demand"]
    assert colours["requests"]["4 others"] == GREY
    lengths = json_in(page, "input_tokens-lengths-data")["data"]
    assert [line["name"] for line in lengths] == names[:5]
    assert all(colours["requests"][line["name"]] == line["line"]["color"] for line in lengths)
    stacked, total = lines["requests"][:6], lines["requests"][6]
    for place in (0, 100, 400):
        assert sum(line["y"][place] for line in stacked) == pytest.approx(
            total["y"][place], rel=0.01
        )
    assert None in total["y"]  # the outage
    assert len(json_in(page, "requests-data")["layout"]["shapes"]) == 1
    assert "means over 30 min" in text_of(page)


def test_traffic_is_told_apart_as_is_asked(client: Client, planner: User, tmp_path: Path) -> None:
    labelled(tmp_path, planner)
    page = client.get("/traces/fleet/", {"by": "tier"})
    drawn = json_in(page, "requests-data")["data"]
    assert [line["name"] for line in drawn][:3] == ["fast", "batch", "Total"]
    assert re.search(r"fast (79|80)\.\d%", text_of(page))
    other = client.get("/traces/fleet/", {"by": "flavour"})
    assert json_in(other, "requests-data")["data"][0]["name"].startswith("model-")


def test_a_browser_without_scripts_can_upload(client: Client) -> None:
    file = SimpleUploadedFile("hour.csv", AZURE.encode())
    assert client.post(UPLOAD, {"file": file})["Location"] == "/traces/hour/"
    answer = client.post(UPLOAD, {"format": "auto"})
    assert answer.status_code == 400 and "File: This field is required" in text_of(answer)


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"mapping": "arrival"}, 400, "Line arrival: write field=column"),
        ({"mapping": "flavour=a"}, 422, "no field 'flavour'"),
        ({"mapping": "model=name", "model": "m"}, 422, "Give one of the two"),
        ({"format": "xml"}, 400, "xml is not one of the available choices"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_kept(
    client: Client, fields: dict[str, str], status: int, words: str
) -> None:
    answer = send(client, AZURE, **fields)
    assert answer.status_code == status and words in answer.json()["problem"]
    assert not Trace.objects.exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"TIMESTAMP,ContextTokens,GeneratedTokens\n", gzip.compress(b"a,b\n" * 99)[:-9]],
    ids=["empty", "header only", "truncated"],  # gzip writes the time: no id to meet by
)
def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(client: Client, data: bytes) -> None:
    answer = send(client, data, name="bad.csv.gz" if data[:2] == b"\x1f\x8b" else "bad.csv")
    if answer.status_code in (400, 422):  # seen before anything was kept
        assert "empty" in answer.json()["problem"]
        return
    run = run_execute(run_id=Run.objects.get().pk)
    assert run.state == Run.State.FAILED
    page = text_of(client.get("/traces/bad/"))
    assert "The file was refused" in page and run.problem in page
    assert run.problem.endswith(".")


ODD = "when,question,answer,kind\n" + "".join(f"{n},{100 + n},{10 + n},chat\n" for n in range(40))


def refused_file(client: Client) -> Trace:
    send(client, ODD, name="odd.csv")
    assert run_execute(run_id=Run.objects.get().pk).state == Run.State.FAILED
    return Trace.objects.get()


def test_a_refused_file_is_mapped_on_its_page(client: Client) -> None:
    trace = refused_file(client)
    page = client.get("/traces/odd/")
    words = text_of(page)
    assert "no column known to hold arrival" in words and "--map" not in words
    assert "Choose the columns" in words and "100" in words and "question" in words
    answer = client.post(
        "/traces/odd/map/",
        {"column_0": "arrival", "column_1": "input_tokens", "column_2": "output_tokens",
         "column_3": "tier", "unit": "s"},
    )  # fmt: skip
    assert answer["Location"] == "/traces/odd/"
    run = run_execute(run_id=Run.objects.order_by("-pk")[0].pk)
    assert run.problem == ""
    trace.refresh_from_db()
    assert (trace.state, trace.requests) == ("ready", 40)
    assert trace.report["input_tokens"] == sum(range(100, 140))
    assert trace.report["tiers"] == ["chat"]
    assert trace.options["mapping"]["arrival"] == "when:s"
    assert client.post("/traces/odd/map/", {})["Location"] == "/traces/odd/"  # nothing is left


def test_a_file_with_several_readings_is_asked_about_on_its_page(client: Client) -> None:
    rows = "".join(f"{137 * n},100,10\n" for n in range(40))
    upload = SimpleUploadedFile("rel.csv", f"t,prompt_tokens,completion_tokens\n{rows}".encode())
    client.post("/traces/upload/", {"file": upload})
    run_execute(run_id=Run.objects.order_by("-pk")[0].pk)
    trace = Trace.objects.get()
    choices = trace.report["choices"]
    assert trace.state == "refused" and [each["value"] for each in choices] == [
        "arrival=t:s", "arrival=t:ms",
    ]  # fmt: skip
    words = text_of(client.get("/traces/rel/"))
    assert all(each["label"] in words and each["figures"] in words for each in choices)
    assert client.post("/traces/rel/map/", {"reading": "9"}).status_code == 409
    assert client.post("/traces/rel/map/", {"reading": "1"})["Location"] == "/traces/rel/"
    run = run_execute(run_id=Run.objects.order_by("-pk")[0].pk)
    trace.refresh_from_db()
    assert (run.problem, trace.state) == ("", "ready")
    assert trace.report["end_ns"] == 137 * 39 * 10**6
    assert any("counts from the start" in each for each in trace.report["assumptions"])
    context = client.get("/traces/rel/").context
    assert "t:ms" in [value for _, value in context["chosen"]]
    assert not {*context["notes"]} & {*trace.report["assumptions"]}


def test_a_file_without_lengths_of_answers_is_read_by_a_tick(client: Client) -> None:
    refused_file(client)
    client.post(
        "/traces/odd/map/",
        {"column_0": "arrival", "column_1": "input_tokens", "unit": "s", "no_answers": "on"},
    )
    run = run_execute(run_id=Run.objects.order_by("-pk")[0].pk)
    trace = Trace.objects.get()
    assert (run.problem, trace.kind, trace.requests) == ("", "demand", 40)
    assert trace.report["output_tokens"] is None


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({}, "at least one column"),
        ({"column_0": "model", "column_1": "model"}, "both mapped to model"),
        ({"column_0": "arrival", "column_1": "requests"}, "does not belong to a file of format"),
    ],
)
def test_a_mapping_that_cannot_be_meant_is_said_in_place(
    client: Client, choice: dict[str, str], words: str
) -> None:
    refused_file(client)
    answer = client.post("/traces/odd/map/", choice)
    if answer.status_code == 302:  # what the columns hold shows when they are read
        run = run_execute(run_id=Run.objects.order_by("-pk")[0].pk)
        answer = client.get("/traces/odd/")
        assert run.state == Run.State.FAILED and "Choose the columns" in text_of(answer)
    assert words in text_of(answer)
    assert Trace.objects.get().state == Trace.State.REFUSED


def test_a_refused_file_goes_with_its_trace(client: Client, data_dir: Path) -> None:
    before = set((data_dir / "uploads").glob("*"))
    refused_file(client)
    assert len(set((data_dir / "uploads").iterdir()) - before) == 1
    client.post(reverse("web:trace-delete", args=["odd"]))
    assert set((data_dir / "uploads").iterdir()) == before


def test_a_trace_is_removed_unless_a_scenario_needs_it(
    client: Client, trace: Trace, scenario: object
) -> None:
    answer = client.post(reverse("web:trace-delete", args=[trace.name]))
    assert answer.status_code == 409 and "used by scenario Chat" in text_of(answer)
    Trace.objects.create(
        name="spare", file_name="s.csv", sha256="d" * 64, bytes=1, owner=trace.owner
    )
    assert client.post(reverse("web:trace-delete", args=["spare"])).status_code == 302
    assert not Trace.objects.filter(name="spare").exists()
