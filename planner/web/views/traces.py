"""Show traces: the list, the upload, one trace and its removal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django import forms
from django.contrib import messages
from django.forms import BoundField
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.errors import IngestError
from planner.inputs.ingest import IngestOptions, Preview
from planner.inputs.ingest.clock import UNITS_NS
from planner.inputs.ingest.formats import ARRIVALS, OFFERED
from planner.inputs.ingest.options import AUTO, OptionLabel, column_mapping
from planner.models import Run, Trace
from planner.selectors.traces import trace_get, traces_list
from planner.services import traces
from planner.services.quota import disk_usages
from planner.services.retention import removal_sentence
from planner.web.errors import planners_only
from planner.web.form_responses import attempt, form_with_errors, go, render_form
from planner.web.forms.widgets import dress
from planner.web.pages.trace import amounts_figure, trace_context
from planner.web.paging import is_short, page_of
from planner.web.request import Request
from planner.web.views.runs import waits_context

MAX_COLUMNS = 60
FIELDS = (
    ("", "not used"),
    (
        "One row per request",
        (
            ("arrival", "Arrival time"),
            ("input_tokens", "Input tokens"),
            ("output_tokens", "Output tokens"),
            ("utility", "Value of the request"),
        ),
    ),
    (
        "Counts per bin",
        (
            ("time", "Begin of the bin"),
            ("requests", "Requests in the bin"),
            ("rate", "Requests per second"),
            ("total_tokens", "Tokens, input and output"),
            ("series", "Name of the series"),
        ),
    ),
    ("Either", (("model", "Model"), ("region", "Region"), ("tier", "Tier"))),
)
JOINED = {"arrival": "+", "time": "+", "requests": ","}  # fields that may use several columns
UNITS = (("", "as it looks"), *((unit, unit) for unit in UNITS_NS))
FILES = (  # shown below the form
    ("One row per request", "arrival, input_tokens, output_tokens; also model, region, tier", ""),
    ("Counts per interval", "time, requests; also input_tokens, output_tokens, series", ""),
    ("Export of a tool", "vLLM, LiteLLM, Langfuse, Helicone, others: columns are recognised", ""),
)


@require_safe
def listing(request: Request) -> HttpResponse:
    """List the traces and the refused files; a short list shows the newest trace as a chart."""
    refused = traces_list().filter(state=Trace.State.REFUSED)
    page = page_of(request, traces_list().exclude(state=Trace.State.REFUSED))
    readable = (trace for trace in page if trace.state == Trace.State.READY and trace.store)
    newest = next(readable, None)
    context = {"page": page, "refused": refused}
    if newest and is_short(page):
        context |= {"newest": newest, "figure": amounts_figure(newest)}
    return render(request, "web/traces.html", context)


@require_http_methods(["GET", "POST"])
@planners_only
def upload(request: Request) -> HttpResponse:
    """Show the upload form and receive its file.

    Scripts that ask for JSON get the next URL or the error.
    """
    if request.method != "POST":
        workspace, person = disk_usages(request.user)
        free = min(workspace.remaining, person.remaining)
        used = {"workspace_bytes": workspace.used, "own_bytes": person.used, "free_bytes": free}
        context = {"form": UploadForm(), "choices": FILES, **used}
        return render(request, "web/trace_upload.html", context)
    form = UploadForm(request.POST, request.FILES)
    stored, problem = attempt(form, lambda: _store_upload(request, form))
    if stored is None:
        return form_with_errors(request, "web/trace_upload.html", form, problem)
    trace, _, is_new = stored
    if not is_new:
        messages.info(request, f"This file was already imported as {trace.name}. Nothing changed.")
    return go(request, reverse("web:trace", args=[trace.name]))


@require_safe
def detail(request: Request, name: str) -> HttpResponse:
    """Show one trace; while it is being read, htmx requests the changing part again."""
    trace = trace_get(name)
    run = trace.runs.filter(kind=Run.Kind.INGEST).first()
    context = {"trace": trace, "run": run, "report": trace.report}
    if run is not None:
        context |= waits_context(run)
    if trace.state == Trace.State.READY:
        context |= trace_context(trace, request.GET)
    preview = traces.trace_preview(trace) if request.user.may_plan else None
    if preview:  # of a refused file
        context["mapping"] = MappingForm(preview)
    if request.htmx and not request.htmx.history_restore_request:
        if run is None or run.is_finished:  # show the whole page: the report and its chart
            return HttpResponse(headers={"HX-Refresh": "true"})
        return render(request, "web/_trace_progress.html", context)
    removal_note = removal_sentence(trace)
    if removal_note:
        messages.warning(request, removal_note)
    return render(request, "web/trace.html", context)


@require_POST
@planners_only
def read_again(request: Request, name: str) -> HttpResponse:
    """Read a refused file again, with the columns or the suggested reading that the user chose."""
    trace = trace_get(name)
    if "reading" in request.POST:
        chosen = request.POST["reading"]
        options = traces.trace_choice(trace, int(chosen) if chosen.isdecimal() else -1)
        traces.trace_reread(trace=trace, owner=request.user, options=options)
        return redirect("web:trace", name)
    preview = traces.trace_preview(trace)
    if preview is None:
        messages.error(request, "The file was removed. Upload it again.")
        return redirect("web:trace", name)
    form = MappingForm(preview, request.POST)
    run, problem = attempt(
        form,
        lambda: traces.trace_reread(
            trace=trace, owner=request.user, options=form.options(trace.file_name)
        ),
    )
    if run is None:
        if str(problem):  # an invalid form has errors of its own
            form.add_error(None, str(problem))
        context = {"trace": trace, "run": None, "report": trace.report, "mapping": form}
        return render_form(request, "web/trace.html", context, problem)
    return redirect("web:trace", name)


@require_POST
def delete(request: Request, name: str) -> HttpResponse:
    trace = trace_get(name)
    traces.trace_delete(trace=trace, user=request.user)
    messages.success(request, f"Trace {name} is removed.")
    return redirect("web:traces")


def _store_upload(request: Request, form: UploadForm) -> tuple[Trace, Run | None, bool]:
    """Return the trace of the uploaded file, the run that reads it, and whether it is new."""
    file = form.cleaned_data["file"]
    return traces.trace_upload(
        owner=request.user, chunks=file.chunks(), file_name=file.name, options=form.options()
    )


class UploadForm(forms.Form):
    """The upload form; bound to data it gives IngestOptions, while the view streams the file."""

    file = forms.FileField(
        label="File", error_messages={"empty": "The file is empty. Export it again."}
    )
    mapping = forms.CharField(
        required=False,
        label="Columns",
        widget=forms.Textarea(
            attrs={
                "rows": 4,
                "spellcheck": "false",
                "placeholder": "arrival=created:ms\ninput_tokens=prompt_len",
            }
        ),
        help_text="One <code>field=column</code> per line. Request files: arrival, input_tokens, "
        "output_tokens, cached_tokens, model, region, tier. "
        "Count files: time, requests, rate, series, input_tokens, output_tokens. "
        "Sum columns with +: input_tokens=prompt+cached.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields |= {name: _reading_field(option) for name, option in OFFERED.items()}
        dress(self)

    def clean_mapping(self) -> dict[str, str]:
        """Return the column of each field that the lines name; raise for a line that cannot."""
        lines = self.cleaned_data["mapping"].splitlines()
        try:
            return column_mapping((line for line in lines if line.strip()), "Line ")
        except IngestError as problem:
            raise forms.ValidationError(str(problem)) from None

    def options(self) -> IngestOptions:
        """Return the options for reading the file; raise IngestError on contradictions."""
        chosen = self.cleaned_data
        return IngestOptions.of(chosen["file"].name, chosen, chosen["mapping"])


def _reading_field(option: OptionLabel) -> forms.Field:
    """Return the form field of an option for reading files."""
    if option.switch:
        return forms.BooleanField(required=False, label=option.label)
    if option.choices:
        choices = list(option.choices.items())
        return forms.ChoiceField(choices=choices, required=False, label=option.label)
    return forms.CharField(max_length=option.longest, required=False, label=option.label)


class MappingForm(forms.Form):
    """The form for column choices; bound to data it gives options to read the file again."""

    unit = forms.ChoiceField(choices=UNITS, required=False, label="Unit of times that are numbers")

    no_answers = forms.BooleanField(
        required=False, label="Import without output lengths, as requests per 10 s"
    )

    def __init__(self, preview: Preview, *args: Any, **kwargs: Any) -> None:
        """Add a select for each column of ``preview``, set to the field that it seems to be."""
        super().__init__(*args, **kwargs)
        self.preview = preview
        self.shown = preview.columns[:MAX_COLUMNS]
        for i, column in enumerate(self.shown):
            self.fields[f"column_{i}"] = forms.ChoiceField(
                choices=FIELDS,
                required=False,
                label=f"What {column} is",
                initial=preview.field_of_column.get(column, ""),
            )
        dress(self)
        for i in range(len(self.shown)):
            self.fields[f"column_{i}"].widget.attrs["class"] += " column-choice"

    def heads(self) -> Iterator[tuple[str, BoundField]]:
        """Yield every column with its choice."""
        for i, column in enumerate(self.shown):
            yield column, self[f"column_{i}"]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Return the first rows of the file, in the shown columns."""
        return [row[:MAX_COLUMNS] for row in self.preview.rows]

    @property
    def hidden_columns(self) -> int:
        """Return the number of columns that are not shown."""
        return len(self.preview.columns) - len(self.shown)

    def clean(self) -> dict[str, Any]:
        """Return the values with ``mapping``, the column or joined columns of each field."""
        columns_by_field: dict[str, list[str]] = {}
        for i, column in enumerate(self.shown):
            field = self.cleaned_data.get(f"column_{i}")
            if field:
                columns_by_field.setdefault(field, []).append(column)
        if not columns_by_field:
            raise forms.ValidationError("Choose the meaning of at least one column.")
        mapping = {}
        for field, columns in columns_by_field.items():
            if len(columns) > 1 and field not in JOINED:
                raise forms.ValidationError(
                    f"{' and '.join(columns)} are both mapped to {field.replace('_', ' ')}. "
                    "Keep one."
                )
            mapping[field] = JOINED.get(field, "").join(columns)
            if field in ("arrival", "time") and self.cleaned_data.get("unit"):
                mapping[field] += f":{self.cleaned_data['unit']}"
        self.cleaned_data["mapping"] = mapping
        return self.cleaned_data

    def options(self, file_name: str) -> IngestOptions:
        """Return the options for reading the file with the chosen columns."""
        format = ARRIVALS.name if self.cleaned_data["no_answers"] else AUTO
        return IngestOptions(name=file_name, format=format, mapping=self.cleaned_data["mapping"])
