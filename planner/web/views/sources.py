"""Show live sources: the list, a new one with a preview, one source and its readings."""

from datetime import timedelta
from math import ceil
from typing import Any

import polars as pl
from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.domain.options import Option, options_in
from planner.domain.report import Axis, Chart, Series
from planner.errors import IngestError
from planner.inputs.ingest.formats import OFFERED
from planner.inputs.ingest.options import column_mapping
from planner.inputs.live.publication import series_name
from planner.inputs.live.settings import KINDS
from planner.models import Source
from planner.outputs.render.figure import MAX_POINTS, Figure
from planner.outputs.render.plotly import figure_of
from planner.selectors.traces import (
    source_gaps,
    source_get,
    source_series,
    sources_list,
)
from planner.services.source_reading import source_preview, source_request_reading
from planner.services.sources import source_change, source_create, source_delete
from planner.web.errors import planners_only
from planner.web.form_responses import attempt, render_form
from planner.web.forms.options import option_field
from planner.web.forms.widgets import dress
from planner.web.paging import page_of
from planner.web.request import Request, TemplateContext

READS = {
    Source.Kind.PROMETHEUS: "Metrics of vLLM, SGLang, TensorRT-LLM, TGI, Dynamo or llm-d. "
    "Needs its URL.",
    Source.Kind.FOLDER: "New trace files in a folder of this server. Needs the folder.",
    Source.Kind.BUCKET: "New trace files in an S3-compatible bucket. Needs its name and a key.",
    Source.Kind.SAMPLES: "Counts per bin that your program sends to the API. Needs a token.",
}
BINS = ((60, "1 min"), (300, "5 min"), (900, "15 min"), (3600, "1 h"))
ENGINES = (
    ("auto", "Any engine found"),
    ("vllm", "vLLM"),
    ("sglang", "SGLang"),
    ("trtllm", "TensorRT-LLM"),
    ("tgi", "TGI"),
    ("dynamo", "Dynamo (frontend)"),
    ("llm-d", "llm-d (endpoint picker)"),
)
LEFT_OUT = ("delay_s", "late_s")  # settings that only the API and the command line take
CHOICES = {"engine": ENGINES, "format": tuple(OFFERED["format"].choices.items())}
DAYS = 7
LINES = 6


@require_safe
def listing(request: Request) -> HttpResponse:
    """List the sources, and the kinds of which a user who may plan can add one."""
    page = page_of(request, sources_list())
    rows = [(source, source_gaps(source)) for source in page]
    address = reverse("web:source-new") if request.user.may_plan else ""
    choices = [
        (kind.label, words, address and f"{address}?kind={kind}") for kind, words in READS.items()
    ]
    return render(request, "web/sources.html", {"page": page, "rows": rows, "choices": choices})


@require_http_methods(["GET", "POST"])
@planners_only
def new(request: Request) -> HttpResponse:
    """Show the form for a source of one kind; preview its data, or create the source."""
    kind = request.GET.get("kind", "")
    kind = kind if kind in KINDS else Source.Kind.PROMETHEUS.value
    context: TemplateContext = {"kinds": Source.Kind.choices, "kind": kind}
    if request.method != "POST":
        return _form(request, SourceForm(kind), context)
    form = SourceForm(kind, request.POST)
    if request.POST.get("do") == "look":
        preview, problem = attempt(
            form, lambda: source_preview(user=request.user, kind=form.kind, fields=form.settings())
        )
        return _form(request, form, context | {"preview": preview}, problem)
    source, problem = attempt(
        form,
        lambda: source_create(
            owner=request.user,
            name=form.cleaned_data["name"],
            kind=form.kind,
            settings=form.settings(),
            bin_s=form.cleaned_data["bin_s"],
        ),
    )
    if source is None:
        return _form(request, form, context, problem)
    return redirect("web:source", source.name)


@require_safe
def detail(request: Request, name: str) -> HttpResponse:
    source = source_get(name)
    page = page_of(request, source.readings.all())  # newest first
    context = {"source": source, "page": page, **source_context(source)}
    return render(request, "web/source.html", context)


@require_POST
def read(request: Request, name: str) -> HttpResponse:
    source_request_reading(source=source_get(name), user=request.user)
    messages.info(request, f"Reading {name}. This page shows the data when it is ready.")
    return redirect("web:source", name)


@require_POST
def pause(request: Request, name: str) -> HttpResponse:
    """Pause or resume a source."""
    paused = request.POST.get("paused") == "yes"
    source_change(source=source_get(name), user=request.user, changes={"paused": paused})
    messages.success(request, f"{name} is {'paused' if paused else 'read again'}.")
    return redirect("web:source", name)


@require_POST
def delete(request: Request, name: str) -> HttpResponse:
    source_delete(source=source_get(name), user=request.user)
    messages.success(request, f"Source {name} is removed with its data.")
    return redirect("web:sources")


def _form(
    request: Request, form: forms.Form, context: TemplateContext, problem: Exception | None = None
) -> HttpResponse:
    return render_form(request, "web/source_new.html", {**context, "form": form}, problem)


def source_context(source: Source) -> TemplateContext:
    """Return the charts of a source's last days with data."""
    samples = source_series(source, start=timezone.now() - timedelta(days=DAYS))
    if samples.bins.is_empty():  # without recent data, the last days with data
        end = source.trace.end_at if source.trace is not None else None
        if end is not None:
            samples = source_series(source, start=end - timedelta(days=DAYS), end=end)
    return {
        "gaps": source_gaps(source),
        "days": DAYS,
        "rates": _figure(samples.bins, source, ("requests",), "requests/s"),
        "queues": _figure(samples.bins, source, ("waiting", "running"), "requests, mean of a bin"),
        "kv": _figure(samples.bins, source, ("kv_use",), "share of the KV cache in use"),
        "speed": _figure(samples.bins, source, ("tbt_mean_s",), "s between tokens, mean of a bin"),
        "power": _figure(samples.bins, source, ("power_w",), "W"),
    }


def _figure(bins: pl.DataFrame, source: Source, fields: tuple[str, ...], y: str) -> Figure | None:
    """Draw the LINES largest series of ``fields`` over time; return None if nothing is known.

    ``fields`` are columns of ``bins``; ``y`` is the axis label, with the unit before a comma. Bins
    are averaged to at most MAX_POINTS. An unknown bin interrupts the line.
    """
    if bins.is_empty():
        return None
    start_s, end_s = int(str(bins["bin_start"].min())), int(str(bins["bin_start"].max()))
    all_bins = (end_s - start_s) // source.bin_s + 1
    step_s = source.bin_s * ceil(all_bins / MAX_POINTS)
    first_s = start_s - start_s % step_s
    grid = pl.DataFrame({"at": pl.int_range(first_s, end_s + 1, step_s, eager=True)})
    ranked: list[tuple[float, Series]] = []  # with the sum of the field
    for (model, region, tier), group in bins.group_by("model", "region", "tier"):
        name = series_name(str(model), str(region), str(tier), source.name)
        for field in fields:
            known = group.drop_nulls(field)
            if known.is_empty():
                continue
            value = pl.col(field).mean()
            if field == "requests":  # counts per bin; all others are means
                value /= source.bin_s
            label = name if len(fields) == 1 else f"{name}, {field}"
            series = _averaged(known, value, grid, step_s, label)
            ranked.append((float(known[field].sum()), series))
    if not ranked:
        return None

    def largest_first(sum_and_series: tuple[float, Series]) -> tuple[float, str]:
        field_sum, series = sum_and_series
        return -field_sum, series.label

    largest = tuple(series for _, series in sorted(ranked, key=largest_first)[:LINES])
    unit, _, _ = y.partition(",")
    return figure_of(Chart("", Axis(), Axis(y, unit), largest))


def _averaged(
    known: pl.DataFrame, value: pl.Expr, grid: pl.DataFrame, step_s: int, label: str
) -> Series:
    """Return ``value`` of the known bins over the steps of ``grid``; empty steps have no value.

    ``grid`` has the start ``at`` of each step of ``step_s`` seconds.
    """
    step_start = (pl.col("bin_start") // step_s * step_s).alias("at")
    values = known.group_by(step_start).agg(value.alias("y"))
    on_grid = values.join(grid, on="at", how="right").sort("at")
    return Series(label, tuple(pl.from_epoch(on_grid["at"], "s")), tuple(on_grid["y"].round(4)))


class SourceForm(forms.Form):
    """The name and the bins of a source, and the settings of its kind."""

    name = forms.CharField(
        label="Name",
        max_length=80,
        help_text="Name in scenarios: lower-case letters, digits and hyphens.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none"}),
    )
    bin_s = forms.TypedChoiceField(
        label="Bins",
        choices=BINS,
        initial=300,
        coerce=int,
        help_text="Shortest scaling interval of plans. It cannot be changed later.",
    )

    def __init__(self, kind: str, data: Any = None) -> None:
        """Add the settings of the ``kind`` of source: the needed ones first, others folded."""
        super().__init__(data)
        self.kind = kind
        for name, option in options_in(KINDS[kind]).items():
            if name not in LEFT_OUT:
                self.fields[name] = _setting_field(option)
        # ``first`` are the visible fields; ``more`` are folded below them.
        needed = [name for name, field in self.fields.items() if field.required and name != "bin_s"]
        shown = (*needed, "prefix", "engine", "format", "bin_s")
        self.first = [name for name in shown if name in self.fields]
        self.more = [name for name in self.fields if name not in self.first]
        self.order_fields([*self.first, *self.more])
        dress(self)

    def settings(self) -> dict[str, Any]:
        """Return the settings that are filled in."""
        names = [name for name in self.fields if name not in SourceForm.base_fields]
        values = {name: self.cleaned_data[name] for name in names}
        return {name: value for name, value in values.items() if value not in ("", {}, None)}

    def clean_match(self) -> dict[str, str]:
        return _pairs(self.cleaned_data["match"])

    def clean_mapping(self) -> dict[str, str]:
        return _pairs(self.cleaned_data["mapping"])


def _setting_field(option: Option) -> forms.Field:
    """Return the form field of a setting; pairs of names and values are lines of text."""
    if option.type == "object":
        area = forms.Textarea(attrs={"rows": 2, "spellcheck": "false"})
        field: forms.Field = forms.CharField(label=option.label, required=False, widget=area)
    else:
        field = option_field(option)
    if option.name in CHOICES:
        field = forms.ChoiceField(label=option.label, required=False, choices=CHOICES[option.name])
    field.required, field.help_text = option.required, option.help
    return field


def _pairs(text: str) -> dict[str, str]:
    """Return the pairs in lines such as NAME=VALUE; raise ValidationError for other lines."""
    try:
        return column_mapping((line for line in text.splitlines() if line.strip()), "Line ")
    except IngestError as problem:
        raise forms.ValidationError(str(problem)) from None
