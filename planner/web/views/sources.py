"""Show live sources: the list, a new one with a preview, one source and its readings."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import polars as pl
from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.domain.report import Axis, Chart, Series
from planner.errors import IngestError
from planner.inputs.ingest.formats import OFFERED
from planner.inputs.ingest.options import column_mapping
from planner.inputs.live.publication import series_name
from planner.models import Source
from planner.outputs.render.figure import MAX_POINTS, Figure
from planner.outputs.render.plotly import figure_of
from planner.selectors.sources import (
    readings_list,
    source_gaps,
    source_get,
    source_series,
    sources_list,
)
from planner.services.source_reading import source_preview, source_request_reading
from planner.services.sources import source_change, source_create, source_delete
from planner.web.errors import planners_only
from planner.web.form_responses import attempt
from planner.web.forms.widgets import dress
from planner.web.paging import paged
from planner.web.request import Request

BINS = ((60, "1 min"), (300, "5 min"), (900, "15 min"), (3600, "1 h"))
ENGINES = (
    ("auto", "Whatever is there"),
    ("vllm", "vLLM"),
    ("sglang", "SGLang"),
    ("trtllm", "TensorRT-LLM"),
    ("tgi", "TGI"),
    ("dynamo", "Dynamo (frontend)"),
    ("llm-d", "llm-d (endpoint picker)"),
)
DAYS = 7
LINES = 6


@require_safe
def listing(request: Request) -> HttpResponse:
    page = paged(request, sources_list())
    rows = [(source, source_gaps(source)) for source in page]
    return render(request, "web/sources.html", {"page": page, "rows": rows})


@require_http_methods(["GET", "POST"])
@planners_only
def new(request: Request) -> HttpResponse:
    """Show the form for a source of one kind; preview its data, or create the source."""
    kind = FORMS.get(request.GET.get("kind", ""), PrometheusForm)
    context: dict[str, Any] = {"kinds": Source.Kind.choices, "kind": kind.kind}
    if request.method != "POST":
        return _form(request, kind(), context)
    form = kind(request.POST)
    if request.POST.get("do") == "look":
        preview, problem = attempt(
            form, lambda: source_preview(user=request.user, kind=form.kind, fields=form.settings())
        )
        return _form(request, form, context | {"preview": preview, "problem": problem})
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
        return _form(request, form, context | {"problem": problem}, status=400)
    return redirect("web:source", source.name)


@require_safe
def detail(request: Request, name: str) -> HttpResponse:
    source = source_get(name)
    page = paged(request, readings_list(source))
    context = {"source": source, "page": page, **source_context(source)}
    return render(request, "web/source.html", context)


@require_POST
def read(request: Request, name: str) -> HttpResponse:
    source_request_reading(source=source_get(name), user=request.user)
    messages.info(request, f"{name} is being read; this page shows it once it has been.")
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
    request: Request, form: forms.Form, context: Mapping[str, Any], status: int = 200
) -> HttpResponse:
    return render(request, "web/source_new.html", {**context, "form": form}, status=status)


def source_context(source: Source) -> dict[str, Any]:
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
    """Draw the LINES largest series; return None if nothing is known.

    An unknown bin interrupts the line.
    """
    if bins.is_empty():
        return None
    start, end = int(str(bins["bin_start"].min())), int(str(bins["bin_start"].max()))
    step = source.bin_s * max(1, -(-((end - start) // source.bin_s + 1) // MAX_POINTS))
    grid = pl.DataFrame({"at": pl.int_range(start - start % step, end + 1, step, eager=True)})
    courses = []
    for (model, region, tier), group in bins.group_by("model", "region", "tier"):
        for field in fields:
            known = group.drop_nulls(field)
            if known.is_empty():
                continue
            rate = pl.col(field).mean() / (source.bin_s if field == "requests" else 1)
            course = (
                known.group_by((pl.col("bin_start") // step * step).alias("at"))
                .agg(rate.alias("y"))
                .join(grid, on="at", how="right")
                .sort("at")
            )
            name = series_name(str(model), str(region), str(tier), source.name)
            label = name if len(fields) == 1 else f"{name}, {field}"
            courses.append((float(known[field].sum()), label, course))
    if not courses:
        return None
    courses.sort(key=lambda ranked: (-ranked[0], ranked[1]))
    series = tuple(
        Series(label, tuple(pl.from_epoch(course["at"], "s")), tuple(course["y"].round(4)))
        for _, label, course in courses[:LINES]
    )
    return figure_of(Chart("", Axis(), Axis(y, y.split(",")[0]), series))


class SourceForm(forms.Form):
    """A form with the fields of all kinds; ``settings`` has the filled fields of one kind."""

    kind = ""
    first: tuple[str, ...] = ()  # order of the visible fields, and of the folded ones below
    more: tuple[str, ...] = ()
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
        help_text="The finest that plans can have; it cannot be changed later.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.order_fields([*self.first, *self.more])
        dress(self)

    def settings(self) -> dict[str, Any]:
        names = [name for name in self.fields if name not in SourceForm.base_fields]
        return {name: value for name in names if (value := self.cleaned_data[name]) not in ("", {})}

    def clean_match(self) -> dict[str, str]:
        return _pairs(self.cleaned_data["match"])

    def clean_mapping(self) -> dict[str, str]:
        return _pairs(self.cleaned_data["mapping"])


def _pairs(text: str) -> dict[str, str]:
    try:
        return column_mapping((line for line in text.splitlines() if line.strip()), "Line ")
    except IngestError as problem:
        raise forms.ValidationError(str(problem)) from None


def _text(label: str, help: str = "", **more: Any) -> forms.CharField:
    return forms.CharField(label=label, help_text=help, required=False, max_length=200, **more)


def _lines(label: str, help: str, placeholder: str) -> forms.CharField:
    area = forms.Textarea(attrs={"rows": 2, "spellcheck": "false", "placeholder": placeholder})
    return forms.CharField(label=label, help_text=help, required=False, widget=area)


class PrometheusForm(SourceForm):
    kind = Source.Kind.PROMETHEUS.value
    url = forms.CharField(
        label="Address",
        max_length=300,
        help_text="URL of the server, without /api/v1. It must be in HEADROOM_SOURCES.",
        widget=forms.TextInput(attrs={"placeholder": "https://prometheus.example:9090"}),
    )
    engine = forms.ChoiceField(label="Engine", choices=ENGINES, required=False)
    match = _lines("Only series with", "One label=value a line.", "namespace=prod")
    model = _text("Model of all", "Default: as the engine reports.")
    model_label = _text("Label of the model", "If it is not the engine's default.")
    region = _text("Region of all")
    region_label = _text("Label of the region", "Such as cluster.")
    tier = _text("Tier of all")
    tier_label = _text("Label of the tier")
    token_env = _text(
        "Environment variable of the bearer token",
        ("Its name begins with HEADROOM_SOURCE_. Do not enter the token itself."),
    )
    user_env = _text("Environment variable of the user name", "For basic authentication.")
    password_env = _text("Environment variable of the password")
    days = forms.FloatField(
        label="Days of history", initial=15, min_value=0.01, max_value=400, required=False
    )
    first = ("name", "url", "engine", "bin_s")
    more = (
        "match", "days", "model", "model_label", "region", "region_label", "tier", "tier_label",
        "token_env", "user_env", "password_env",
    )  # fmt: skip

    def settings(self) -> dict[str, Any]:
        return {name: value for name, value in super().settings().items() if value is not None}


class FilesForm(SourceForm):
    """The form fields on how files are read, for folders and buckets."""

    format = forms.ChoiceField(
        label="Format", choices=list(OFFERED["format"].choices.items()), required=False
    )
    mapping = _lines("Columns", "One field=column a line.", "arrival=created:ms")
    model = _text("Model of every row")
    region = _text("Region of every row")
    tier = _text("Tier of every row")
    timezone = _text(OFFERED["timezone"].label, OFFERED["timezone"].help)
    more: tuple[str, ...] = ("mapping", "model", "region", "tier", "timezone")


class FolderForm(FilesForm):
    kind = Source.Kind.FOLDER.value
    path = forms.CharField(
        label="Folder",
        max_length=500,
        help_text="A folder on the workers' machine, within HEADROOM_SOURCE_FOLDERS.",
    )
    first = ("name", "path", "format", "bin_s")


class BucketForm(FilesForm):
    kind = Source.Kind.BUCKET.value
    url = forms.CharField(
        label="Address",
        max_length=300,
        help_text=(
            "URL of the S3-compatible server, without the bucket. It must be in HEADROOM_SOURCES."
        ),
        widget=forms.TextInput(attrs={"placeholder": "https://s3.eu-central-1.amazonaws.com"}),
    )
    bucket = forms.CharField(label="Bucket", max_length=63)
    prefix = _text("Prefix", "Folder in the bucket. Default: the whole bucket.")  # type: ignore[assignment]  # fields are no attributes: Form.prefix stays
    signing_region = _text("Region of the bucket", "As its server calls it; us-east-1.")
    access_key_env = _text(
        "Environment variable of the access key",
        ("Its name begins with HEADROOM_SOURCE_. Do not enter the key itself."),
    )
    secret_key_env = _text("Environment variable of the secret key")
    session_token_env = _text("Variable of the session token", "Of temporary credentials.")
    first = ("name", "url", "bucket", "prefix", "format", "bin_s")
    more = (
        "access_key_env", "secret_key_env", "session_token_env", "signing_region",
        *FilesForm.more,
    )  # fmt: skip


class SamplesForm(SourceForm):
    kind = Source.Kind.SAMPLES.value
    first = ("name", "bin_s")
    more = ()


FORMS: dict[str, type[PrometheusForm | FolderForm | BucketForm | SamplesForm]] = {
    form.kind: form for form in (PrometheusForm, FolderForm, BucketForm, SamplesForm)
}
