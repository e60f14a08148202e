"""Whether every page, export and command shows the same figures of one comparison.

Cost, energy, replicas and P/D ratio are read from each source as a person reads them. Two sources
contradict each other if their figures differ in the three digits that are shown. Needs Django set
up.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

from django.test import Client
from django.urls import reverse

from planner.models import Proposal, Run
from planner.outputs.render.terminal import terminal_text
from planner.outputs.reports import run_report

TILE = re.compile(
    r"<dt[^>]*>\s*(?P<label>.*?)\s*</dt>\s*<dd[^>]*>\s*(?P<text>.*?)\s*</dd>(?P<more>.*?)</div>",
    re.S,
)
LINE = re.compile(r"^(?P<label>\S.*?) {2,}(?P<text>\S.*?)(?: {2,}(?P<more>.*))?$", re.M)
RATIO = re.compile(r"P:D (\d+:\d+)")
FIGURES = {"Cost": "cost", "Energy": "energy", "Replicas": "replicas"}  # by label, without its span
Sighting = tuple[str, str, str]  # figure, source, value with three digits


def contradictions(client: Client, run: Run) -> list[str]:
    """Return a sentence per source that differs from the first source of its figure."""
    first: dict[str, tuple[str, str]] = {}
    found = []
    for figure, source, value in _sightings(client, run):
        before, shown = first.setdefault(figure, (source, value))
        if value != shown:
            found.append(f"{figure}: {shown} in {before}, {value} in {source}")
    return found


def _sightings(client: Client, run: Run) -> Iterator[Sighting]:
    export = reverse("web:run-export", args=[run.pk])
    pages = {"page of the run": reverse("web:run", args=[run.pk]), "HTML": f"{export}?to=html"}
    proposal = Proposal.objects.filter(run=run, policy=run.result["recommended"]["policy"]).first()
    if proposal is not None:
        pages["proposal"] = reverse("web:proposal", args=[proposal.pk])
    for source, address in pages.items():
        yield from _labelled_figures(source, TILE, unescape(_text(client, address)))
    yield from _labelled_figures("terminal", LINE, terminal_text(run_report(run)))
    policy = run.result["recommended"]["policy"]
    rows = csv.DictReader(io.StringIO(_text(client, f"{export}?to=csv&table=policies")))
    yield from _figures("CSV", next(row for row in rows if row["policy"] == policy))
    document = json.loads(_text(client, f"{export}?to=json"))
    yield from _figures("JSON", document["policies"][policy])
    answer = json.loads(_text(client, reverse("api:run-results", args=[run.pk])))
    yield from _figures("REST API", answer["policies"][policy])
    address = reverse("api:run-what-if", args=[run.pk])
    same = client.post(address, {}, content_type="application/json").json()["recommended"]
    yield "cost", "what-if without changes", _digits(same["cost_usd"])
    if same["replicas"]:
        yield "replicas", "what-if without changes", _span(*same["replicas"])
    if proposal is not None:
        address = reverse("api:proposal-difference", args=[proposal.pk])
        total = json.loads(_text(client, address))["total"]
        yield "replicas", "REST API of the proposal", _span(total["least"][1], total["most"][1])


def _text(client: Client, address: str) -> str:
    answer = client.get(address)
    if answer.status_code != 200:
        raise SystemExit(f"{address} answers {answer.status_code}; the bench needs its figures.")
    return answer.getvalue().decode()


def _labelled_figures(source: str, pattern: re.Pattern[str], text: str) -> Iterator[Sighting]:
    """Yield the figures with one of the labels."""
    for match in pattern.finditer(text):
        name = re.sub(r" (per day|in .*)$", "", match["label"])
        if (figure := FIGURES.get(name)) is None:
            continue
        shown = match["text"].replace(",", "")
        numbers = [float(number) for number in re.findall(r"\d[\d.]*", shown)]
        if figure == "replicas":
            yield figure, source, _span(numbers[0], numbers[-1])
            if ratio := RATIO.search(match["more"] or ""):
                yield "P/D", source, ratio[1]
        elif numbers:
            scale = 1e3 if "MWh" in match["text"] else 1.0
            yield figure, source, _digits(scale * numbers[0])


def _figures(source: str, row: dict[str, Any]) -> Iterator[Sighting]:
    """Yield the figures of a policy."""
    yield "cost", source, _digits(float(row["cost_usd"]))
    yield "energy", source, _digits(float(row["energy_kwh"]))


def _digits(value: float) -> str:
    return f"{value:.3g}"


def _span(least: float, most: float) -> str:
    return f"{least:.0f} to {most:.0f}"
