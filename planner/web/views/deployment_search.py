"""Search for deployments from a form."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from django.core.cache import cache
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from planner.domain.deployment_search.results import Row
from planner.domain.deployment_search.search import DeploymentSearchResult
from planner.domain.progress import Progress
from planner.errors import EXPECTED
from planner.models import Trace
from planner.outputs.render.figure import (
    BLUE,
    GREY,
    PALETTE,
    Figure,
    PlotlyData,
    figure,
    logarithmic,
    points,
)
from planner.selectors.scenarios import scenarios_list
from planner.selectors.traces import traces_list
from planner.services.deployment_search import is_search_stored, stored_search
from planner.web.forms.deployment_search import ConfigureForm
from planner.web.hardware_names import choice_names
from planner.web.request import Request, TemplateContext

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
COLOURS = PALETTE[1:-1]  # blue is for what is recommended, grey for the others
EXAMPLES: dict[str, dict[str, Any]] = {
    "Chat": {"model": "llama-3.1-8b", "isl": 512, "osl": 256, "ttft_ms": 500, "tbt_ms": 50},
    "Code completion": {
        "model": "qwen3-coder-30b-a3b", "isl": 2048, "osl": 64, "ttft_ms": 500, "tbt_ms": 30,
    },
    "Long documents": {
        "model": "llama-3.3-70b", "isl": 8192, "osl": 512, "ttft_ms": 2000, "tbt_ms": 50,
    },
    "Agents": {
        "model": "qwen3-235b-a22b", "isl": 16384, "osl": 512, "ttft_ms": 5000, "tbt_ms": 50,
    },
}  # fmt: skip
MOST = 50  # scenarios and traces to choose from
KEPT_S = 60  # time for which the progress of a search is stored; a search takes seconds
STEP = 0.02  # progress is stored at most once per this share of a search


@require_safe
def page(request: Request) -> HttpResponse:
    """Show the form and, if the URL has values, the answer; htmx replaces only the answer.

    With ``example`` in the URL, its values fill the form, and the page's script sends it at once.
    An answer that is not stored yet is ``pending``, and the script requests it with htmx. Browsers
    without scripts have ``wait`` in the URL and get the page with the answer.
    """
    asked = "model" in request.GET and "example" not in request.GET
    form = ConfigureForm(request.GET) if asked else ConfigureForm(initial=request.GET.dict())
    context: TemplateContext = {"form": form, "asked": asked, "choices": _examples()}
    if asked and form.is_valid() and not request.htmx and "wait" not in request.GET:
        context["pending"] = not is_search_stored(form.query())
    if asked and form.is_valid() and not context.get("pending"):
        try:
            context |= page_context(stored_search(form.query(), _shared_progress(request)))
            context |= {
                "scenarios": scenarios_list()[:MOST],
                "traces": traces_list().filter(state=Trace.State.READY)[:MOST],
            }
        except EXPECTED as problem:
            context["problem"] = str(problem)
        finally:
            cache.delete(_progress_key(request))
    if request.htmx and request.htmx.target == "answer":
        return render(request, "web/_configure.html", context)
    return render(request, "web/configure.html", context | choice_names())


def _examples() -> list[tuple[str, str, str]]:
    """Return the name, the values and the address of each example search."""
    examples = []
    for name, values in EXAMPLES.items():
        words = f"{values['model']}, {values['isl']:,} input and {values['osl']:,} output tokens"
        examples.append((name, words, f"?example=1&{urlencode(values)}"))
    return examples


@require_safe
def progress(request: Request) -> HttpResponse:
    """Show the progress of this user's search; the response is empty if none is running."""
    stored = cache.get(_progress_key(request))
    if stored is None:
        return HttpResponse(status=204)
    done, what = stored
    return render(request, "web/_searching.html", {"done": done, "what": what})


def _shared_progress(request: Request) -> Progress:
    """Return a progress callback that stores its values where any web process can read them."""
    key, last = _progress_key(request), -1.0

    def store(done: float, what: str) -> None:
        """Store the progress for the waiting page if it grew by STEP."""
        nonlocal last
        if done - last >= STEP:
            last = done
            cache.set(key, (done, what), KEPT_S)

    return store


def _progress_key(request: Request) -> str:
    """Return the cache key of the progress of a user's search."""
    return f"configure-{request.user.pk}"


def page_context(found: DeploymentSearchResult) -> TemplateContext:
    """Return the context of the found deployments."""
    return {
        "found": found,
        "best": found.simplest,
        "simpler": _simpler(found),
        "near_limits": list(_near_limits(found)),
        "cheapest": next(iter(found.candidates), None),
        "rows": [
            (row, json.dumps(row.profiles))
            for row in sorted(found.candidates, key=lambda row: row != found.simplest)
        ],
        "by_gpu": [(row, "") for row in found.by_gpu],
        "speed_figure": _front(found, "tokens_per_s_user", "tokens/s per user"),
        "latency_figure": _front(found, "ttft_ms", "TTFT, ms (95th percentile)"),
    }


def _simpler(found: DeploymentSearchResult) -> tuple[Row, float] | None:
    """Return (the cheapest aggregated deployment, its extra cost as a share).

    The share is of the cost of the recommended deployment. None: that one is aggregated too, or a
    price is not known.
    """
    best = found.simplest
    if best is None or best.mode != "disagg" or not best.usd_per_mtok:
        return None
    for candidate in found.candidates:  # from the cheapest
        if candidate.mode != "disagg":
            if candidate.usd_per_mtok is None:
                return None
            return candidate, candidate.usd_per_mtok / best.usd_per_mtok - 1.0
    return None


def _near_limits(found: DeploymentSearchResult) -> Iterator[str]:
    """Yield each latency of the recommended deployment that its error may take over the limit."""
    best = found.simplest
    if best is None:
        return
    for name, latency_ms, limit_ms, error_share in (
        ("TTFT", best.ttft_ms, found.ttft_ms, best.expected_error.ttft),
        ("TPOT", best.tbt_ms, found.tbt_ms, best.expected_error.tbt),
    ):
        if limit_ms is None or latency_ms is None:
            continue
        if latency_ms * (1 + error_share) > limit_ms:
            yield name


def _front(found: DeploymentSearchResult, key: str, label: str) -> Figure | None:
    """Draw the Pareto front of dollars per million tokens and a measure, by GPU type and mode.

    ``key`` is the measure, ``label`` its name. Deployments in the table are grey. None: the front
    has fewer than two deployments with a price.
    """
    # A row has the names of the fronts that it is on: cost against TTFT, or tokens/s per user.
    front_name = "TTFT" if key == "ttft_ms" else "user"
    priced = [row for row in found.pareto if row.usd_per_mtok is not None]
    front = [row for row in priced if any(front_name in name for name in row.front)]
    if len(front) < 2:
        return None
    listed = [row for row in found.candidates if row.usd_per_mtok is not None]
    traces = [_markers(listed, key, "Listed below", GREY, "circle-open")] if listed else []
    by_gpu_and_mode: dict[str, list[Row]] = {}
    for row in front:
        mode_label = ", P/D" if row.mode == "disagg" else ""
        by_gpu_and_mode.setdefault(f"{row.gpu}{mode_label}", []).append(row)
    for i, (name, rows) in enumerate(by_gpu_and_mode.items()):
        colour, symbol = COLOURS[i % len(COLOURS)], SYMBOLS[i % len(SYMBOLS)]
        traces.append(_markers(rows, key, name, colour, symbol))
    best = found.simplest
    if best is not None and best.usd_per_mtok is not None:
        traces.append(_markers([best], key, "Recommended", BLUE, "star", size=14))
    from_zero: PlotlyData = {"rangemode": "tozero"}
    xaxis = from_zero
    if key == "ttft_ms":
        xaxis = logarithmic([row.ttft_ms for row in (*front, *listed)])
    return figure(
        traces, height=340, x=label, y="$ per million tokens", xaxis=xaxis, yaxis=from_zero
    )


def _markers(
    rows: list[Row], key: str, name: str, colour: str, symbol: str, size: float = 9
) -> Any:
    """Return deployments as points: their measure ``key``, and dollars per million tokens."""
    return points(
        [float(f"{getattr(row, key):.4g}") for row in rows],
        [float(f"{row.usd_per_mtok:.4g}") for row in rows],
        name, colour, symbol=symbol, size=size, text=[row.label for row in rows],
        hover="%{text}<br>%{x:,.4~r}, $%{y:,.4~r} per million tokens",
    )  # fmt: skip
