"""Estimate one deployment from a form, with a sweep over its load, or many from a file."""

import re
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
from django import forms
from django.contrib import messages
from django.forms import BoundField
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.text import slugify
from django.views.decorators.http import require_POST, require_safe

from planner.domain.estimate_options import ESTIMATE, PARALLELISM
from planner.errors import EXPECTED, IngestError
from planner.inputs.estimates.deployment_rows import read_rows
from planner.inputs.ingest.source import short_name
from planner.outputs import csv_text
from planner.outputs.estimates import answer_table
from planner.services import calibrations, estimates
from planner.web.errors import planners_only
from planner.web.form_responses import CSV, attachment
from planner.web.forms.options import option_field
from planner.web.forms.widgets import DressedForm, dress
from planner.web.hardware_names import choice_names
from planner.web.pages.profile_figures import SweepLine, sweep_figure
from planner.web.request import Request, TemplateContext

OPTIONS = (
    "kv_cache", "equal_lengths", "draft_tokens", "accepted_tokens", "lora_rank", "lora_active",
    "rounds", "recv_interval", "max_num_seqs", "chunk_tokens", "prefix_hit_rate", "ttft_statistic",
)  # fmt: skip
NEEDED = ("model", "gpu", "isl", "osl", "concurrency")
INITIAL = {"model": "llama-3.1-8b", "gpu": "H100-SXM", "tp": 1, "isl": 1024, "osl": 256,
           "concurrency": 32}  # fmt: skip
LISTS = {"model": "model-names", "gpu": "gpu-names"}
HINTED = ("rate", *OPTIONS)
BLANK = {"precision": "published", **dict.fromkeys(("kv_cache", "equal_lengths"), "default"),
         "ttft_statistic": "default"}  # fmt: skip
COLUMNS = ("concurrency", "isl", "osl", "ttft_ms", "tbt_ms")
SWEEP = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MAX_BYTES = 20_000_000

Deployment = dict[str, Any]  # a row of ESTIMATE's options by name, perhaps with measured times


@require_safe
def page(request: Request) -> HttpResponse:
    """Show the form and, if the URL has values, the answer; htmx replaces only the answer."""
    asked = "model" in request.GET
    form = EstimateForm(request.GET) if asked else EstimateForm()
    context: TemplateContext = {"form": form, "asked": asked}
    if asked and form.is_valid():
        try:
            context |= answer_context(form.row(), form.measurements())
            context["typed"] = form.cleaned_data["measured"]
        except EXPECTED as problem:
            context["problem"] = str(problem)
    if request.htmx and request.htmx.target == "answer":
        return render(request, "web/_estimate.html", context)
    context["rows_form"] = RowsForm()
    return render(request, "web/estimate.html", context | choice_names())


@require_POST
def rows(request: Request) -> HttpResponse:
    """Return a CSV file of answers to a file of deployments, in the order of the file."""
    form = RowsForm(request.POST, request.FILES)
    if not form.is_valid():
        raise IngestError("; ".join(str(errors[0]) for errors in form.errors.values()))
    file = form.cleaned_data["file"]
    if file.size > MAX_BYTES:
        raise IngestError(f"{file.name} is larger than {MAX_BYTES / 1e6:g} MB. Split it.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / short_name(file.name)
        path.write_bytes(file.read())
        answers = estimates.estimate_many(read_rows(path))
    stem = slugify(Path(file.name).stem) or "rows"
    return attachment(csv_text(answer_table(answers)), CSV, f"{stem}-estimates.csv")


@require_POST
@planners_only
def keep(request: Request) -> HttpResponse:
    """Save the typed rows as a measurement file, which then corrects similar estimates."""
    form = EstimateForm(request.POST)
    if not form.is_valid() or not form.cleaned_data["measured"]:
        first_errors = [str(errors[0]) for errors in form.errors.values()]
        raise IngestError("; ".join(first_errors) or "There are no rows. Type at least one.")
    rows = form.measurements()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = csv_text(pl.DataFrame([{name: row.get(name) for name in columns} for row in rows]))
    deployment = form.row()
    calibration = calibrations.calibration_upload(
        user=request.user,
        chunks=[text.encode()],
        file_name=f"{slugify(deployment['model'])}-{slugify(deployment['gpu'])}-typed.csv",
        options=calibrations.CalibrationOptions(
            format="csv", precision=deployment.get("precision")
        ),
        source="typed in on the page of estimates",
    )
    messages.success(request, f"{len(rows)} rows are saved. Similar estimates use them.")
    return redirect("web:calibration", calibration.pk)


def answer_context(row: Deployment, typed: list[Deployment]) -> TemplateContext:
    """Return a deployment's estimate, corrected by the rows ``typed``, and charts over load."""
    measured = estimates.MeasurementSource(typed, "your measured rows")
    estimate = estimates.estimate_one(row, measured)
    # The sweep is over requests in flight, also if the load is given as a rate.
    closed_loop = {name: value for name, value in row.items() if name != "rate"}
    corrected = {"ttft_ms": estimate.ttft_ms, "tbt_ms": estimate.tbt_ms}  # by the typed rows
    at_rate = estimate.at_rate
    if at_rate is not None:
        closed_loop["concurrency"] = max(at_rate.in_flight, 1.0)
        # Measured rows correct the closed loop, so the page shows that for comparison.
        corrected = {"ttft_ms": at_rate.closed_loop_ttft_ms, "tbt_ms": at_rate.closed_loop_tbt_ms}
    concurrencies = sorted({*SWEEP, closed_loop["concurrency"]})
    sweep = estimates.estimate_sweep(closed_loop, concurrencies, measured)
    loads = [float(load) for load, _ in sweep]

    def line(name: str, unit: str, key: str) -> SweepLine:
        """Return the line of field ``key`` over the sweep."""
        return SweepLine(name, unit, [getattr(at_load, key) for _, at_load in sweep])

    latencies = [line("TTFT", "ms", "ttft_ms"), line("TPOT", "ms", "tbt_ms")]
    return {
        "found": estimate,
        "after": corrected,
        "latency_figure": sweep_figure(loads, latencies),
        "output_figure": sweep_figure(loads, [line("Output", "tokens/s", "tokens_per_s")]),
        "power_figure": sweep_figure(loads, [line("Power", "W", "power_w")]),
    }


class EstimateForm(forms.Form):
    measured = forms.CharField(
        label="Your own measured rows",
        max_length=8000,
        required=False,
        widget=forms.Textarea(attrs={"rows": 4, "placeholder": "8 1024 256 95 9.4"}),
        help_text="One line per measurement: requests in flight, input tokens, output "
        "tokens, TTFT ms, TPOT ms. Five rows are enough. Use a dash for a missing time.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Add a field for each option of an estimate."""
        super().__init__(*args, **kwargs)
        for name, option in ESTIMATE.items():
            self.fields[name] = option_field(option, BLANK.get(name, ""))
            self.fields[name].initial = INITIAL.get(name)
            if name in HINTED:
                self.fields[name].help_text = option.help
        for name in NEEDED:
            self.fields[name].required = True
        for name, names in LISTS.items():
            self.fields[name].widget.attrs["list"] = names
        dress(self)

    def widths(self, prefix: str) -> list[BoundField]:
        """Return the parallelism fields of the role ``prefix``; "": those of aggregated serving."""
        return [self[option.name] for option in PARALLELISM[prefix]]

    def options(self) -> list[BoundField]:
        """Return the fields of the rarely used options, which the page folds."""
        return [self[name] for name in OPTIONS]

    def together(self) -> list[BoundField]:
        """Return the fields of aggregated serving."""
        return self.widths("")

    def prefill(self) -> list[BoundField]:
        """Return the fields of the prefill replicas."""
        return [self["prefill_workers"], *self.widths("prefill_")]

    def decode(self) -> list[BoundField]:
        """Return the fields of the decode replicas."""
        return [self["decode_workers"], *self.widths("decode_")]

    def clean_measured(self) -> list[dict[str, float]]:
        """Return the rows that the user entered, as numbers by COLUMNS."""
        rows = []
        for number, line in enumerate(self.cleaned_data["measured"].splitlines(), 1):
            cells = re.split(r"[\s,;]+", line.strip())
            if cells == [""]:
                continue
            try:
                values = [None if cell in "-–" else float(cell) for cell in cells]
            except ValueError:
                values = []
            # Only the two times, which are the last columns, may be missing.
            if len(values) != len(COLUMNS) or None in values[:3]:
                raise forms.ValidationError(
                    f"Line {number} is not five numbers: requests in flight, input tokens, output "
                    "tokens, TTFT ms, TPOT ms. Write a dash for a time not measured."
                )
            pairs = zip(COLUMNS, values, strict=True)
            rows.append({name: value for name, value in pairs if value is not None})
        return rows

    def measurements(self) -> list[Deployment]:
        """Return the typed rows, each with the deployment that the form describes."""
        deployment = {name: value for name, value in self.row().items() if name != "rate"}
        return [deployment | row for row in self.cleaned_data["measured"]]

    def row(self) -> Deployment:
        """Return the form's values as a row for the estimate.

        P/D widths are included only in disaggregated mode, concurrency only without a rate.
        """
        row = {name: value for name, value in self.cleaned_data.items() if value not in (None, "")}
        row.pop("measured", None)
        if "rate" in row:
            row.pop("concurrency", None)
        if row.get("mode") == "disagg":
            return row
        return {
            name: value
            for name, value in row.items()
            if not name.startswith(("prefill_", "decode_"))
        }


class RowsForm(DressedForm):
    file = forms.FileField(
        label="Rows", error_messages={"empty": "The file is empty. Export it again."}
    )
