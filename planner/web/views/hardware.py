"""Show the catalogue of GPUs, models, prices and carbon; edit the user's own GPUs and models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django import forms
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.errors import PlannerError
from planner.inputs.catalogue import user_hardware
from planner.models import OwnGpu, PriceList
from planner.selectors import hardware as known
from planner.selectors.hardware import PRECISIONS, fit_on_gpu, model_memory
from planner.selectors.lookup import version_of
from planner.selectors.profiles import profiles_list
from planner.selectors.scenarios import models_of_scenarios
from planner.services import hardware, imports
from planner.web.errors import planners_only
from planner.web.form_responses import attempt, form_with_errors, render_form
from planner.web.forms.widgets import DressedForm, dress
from planner.web.paging import page_of
from planner.web.request import Request, TemplateContext
from simulation.performance.specs import BYTES, KINDS, ModelSpec, Provenance

SHOWN_PRICES = 12
PRICE_FILTERS = ("search", "provider", "region", "gpu", "order")


@require_safe
def gpus(request: Request) -> HttpResponse:
    search = request.GET.get("search", "")
    listed = known.gpus_list(search)
    context = {"gpus": listed, "search": search, "prices": known.usd_per_gpu_hour_by_type()}
    return _list(request, "gpus", context)


@require_safe
def models(request: Request) -> HttpResponse:
    """List the models, those of scenarios first, with their memory on the chosen GPU type."""
    search = request.GET.get("search", "")
    names = [gpu.name for gpu in known.gpus_list()]
    chosen = request.GET.get("gpu", "")
    gpu = known.gpu_get(chosen if chosen in names else _usual_gpu()).spec
    used = models_of_scenarios()
    used_first = sorted(known.models_list(search), key=lambda model: model.name not in used)
    page = page_of(request, used_first)
    context = {
        "page": page,
        "models": [(entry, model_memory(entry, gpu)) for entry in page],
        "used": used,
        "search": search,
        "gpu_names": names,
        "gpu": gpu.name,
    }
    return _list(request, "models", context)


@require_safe
def prices(request: Request) -> HttpResponse:
    """Show own price lists and the catalogue's prices, filtered and sorted as requested."""
    return _prices(request)


def _prices(request: Request, problem: Exception | None = None) -> HttpResponse:
    """Show the table of prices, with the error of an upload if there is one.

    Without own lists and filters, it has the cheapest offers of a usual GPU type.
    """
    filters = {name: request.GET.get(name, "") for name in PRICE_FILTERS}
    lists = PriceList.objects.all()
    if not request.GET and not lists:
        filters |= {"gpu": _usual_gpu(), "order": "usd_per_gpu_hour"}
    everything = known.prices_list()  # without filters, for the choices
    page = page_of(request, known.prices_list(**filters))
    context = _price_columns(list(page), everything) | {
        "page": page,
        "search": filters["search"],
        "asked": filters,
        "choices": {
            name: sorted({getattr(row, name) for row in everything} - {""})
            for name in ("provider", "region", "gpu")
        },
        "lists": lists,
    }
    return _list(request, "prices", context, problem)


@require_POST
@planners_only
def price_list_add(request: Request) -> HttpResponse:
    """Add a price list from a file, or show the form with the error if it cannot be read."""
    file = request.FILES.get("file")
    if not isinstance(file, UploadedFile):
        return _prices(request, PlannerError("Choose a CSV or YAML file."))
    try:
        row = hardware.price_list_save(
            user=request.user,
            data=file.read(hardware.MAX_BYTES + 1),
            file_name=file.name or "",
            name=request.POST.get("name", ""),
        )
    except PlannerError as problem:
        return _prices(request, problem)
    count = len(row.facts["prices"])
    messages.success(request, f"{row.name} has {count:,} prices. Name it in a scenario to use it.")
    return redirect("web:prices")


@require_POST
def price_list_delete(request: Request, name: str) -> HttpResponse:
    hardware.price_list_delete(row=known.price_list_get(name), user=request.user)
    messages.success(request, f"{name} is removed.")
    return redirect("web:prices")


@require_safe
def carbon(request: Request) -> HttpResponse:
    """Show the carbon intensity of regions, filtered by the words of a search."""
    search = request.GET.get("search", "")
    page = page_of(request, known.carbon_list(search))
    # The part after ", from " is the origin of one row, which its number shows.
    sources = {row.grid.provenance.source.partition(", from ")[0] for row in page}
    context = {"page": page, "grids": page.object_list, "search": search}
    return _list(request, "carbon", context | {"sources": sorted(sources)})


@require_safe
def gpu(request: Request, name: str) -> HttpResponse:
    """Show one GPU type."""
    entry = known.gpu_get(name)
    offers = known.prices_list(gpu=name)
    figures = _figures(entry)
    sources: dict[Provenance, list[str]] = {}
    for quantity, _, provenance in figures:
        sources.setdefault(provenance, []).append(quantity.label)
    cheapest = sorted(offers, key=_price_order)[:SHOWN_PRICES]
    context = _price_columns(cheapest, offers) | {
        "entry": entry,
        "price": known.usd_per_gpu_hour_by_type().get(name),
        "figures": figures,
        "sources_of": sources,
        "profiles": [profile for profile in profiles_list() if profile.gpu == name],
        "price_count": len(offers),
    }
    return render(request, "web/gpu.html", context)


@require_safe
def model(request: Request, name: str) -> HttpResponse:
    """Show one model."""
    entry = known.model_get(name)
    profiles = profiles_list()
    gpus_with_profile = {profile.gpu for profile in profiles}
    placements: dict[str, list[Any]] = {"": [], "Other GPUs": []}  # by title of their group
    for gpu in known.gpus_list():
        fits = [fit_on_gpu(entry.spec, gpu.spec, precision) for precision in PRECISIONS]
        title = "" if gpu.spec.name in gpus_with_profile else "Other GPUs"
        placements[title].append((gpu.spec, fits))
    context = {
        "entry": entry,
        "placements": placements,
        "profiles": [profile for profile in profiles if profile.model == name],
    }
    return render(request, "web/model.html", context)


@require_http_methods(["GET", "POST"])
@planners_only
def gpu_edit(request: Request, name: str = "") -> HttpResponse:
    """Edit the user's own GPU ``name``, or a new one without a name."""
    row = known.own_gpu_get(name) if name else None
    spec = known.gpu_get(name).spec if name else None
    return _edit(request, row, GpuForm, user_hardware.gpu_form_values(spec) if spec else {}, "gpu")


@require_http_methods(["GET", "POST"])
@planners_only
def model_edit(request: Request, name: str = "") -> HttpResponse:
    """Edit the user's own model ``name``, or a new one without a name."""
    row = known.own_model_get(name) if name else None
    spec = known.model_get(name).spec if name else None
    shaped = spec if spec and spec.shape else None
    form_class = partial(ModelForm, has_shape=shaped is not None)
    quantities = user_hardware.model_form_values(spec) if spec else {}
    return _edit(request, row, form_class, quantities, "model", shaped)


@require_http_methods(["GET", "POST"])
@planners_only
def add_file(request: Request) -> HttpResponse:
    """Add GPUs and models from a YAML file, or a model from its config.json."""
    if request.method != "POST":
        return render(request, "web/hardware_import.html", {"form": ImportForm()})
    form = ImportForm(request.POST, request.FILES)
    rows, problem = attempt(form, lambda: _import(request, form))
    if rows is None:
        return form_with_errors(request, "web/hardware_import.html", form, problem)
    messages.success(request, f"Taken over: {', '.join(row.name for row in rows)}.")
    page = "web:gpu" if isinstance(rows[0], OwnGpu) else "web:model"
    return redirect(page, rows[0].name)


@require_POST
def gpu_delete(request: Request, name: str) -> HttpResponse:
    hardware.hardware_delete(row=known.own_gpu_get(name), user=request.user)
    messages.success(request, f"{name} is removed.")
    return redirect("web:gpus")


@require_POST
def model_delete(request: Request, name: str) -> HttpResponse:
    hardware.hardware_delete(row=known.own_model_get(name), user=request.user)
    messages.success(request, f"{name} is removed.")
    return redirect("web:models")


def _list(
    request: Request, what: str, context: TemplateContext, problem: Exception | None = None
) -> HttpResponse:
    """Show a tab of the catalogue; during a search, htmx gets only its rows."""
    only_rows = request.htmx and request.htmx.target == "rows"
    template = f"web/_{what}_rows.html" if only_rows else f"web/{what}.html"
    return render_form(request, template, context, problem)


def _usual_gpu() -> str:
    """Return the GPU type that lists begin with."""
    names = [gpu.name for gpu in known.gpus_list()]
    return next((name for name in names if name.startswith("H100")), names[0])


def _price_columns(
    shown: Sequence[known.PriceRow], everything: Sequence[known.PriceRow]
) -> TemplateContext:
    """Return the rows of a table of prices, their sources, and whether any has a commitment."""
    commitments = ("one_year_usd_per_gpu_hour", "three_years_usd_per_gpu_hour")
    return {
        "prices": shown,
        "sources": sorted({row.provenance.source for row in shown}),
        "committed": any(
            getattr(row, name) is not None for row in everything for name in commitments
        ),
    }


def _figures(entry: Any) -> list[tuple[user_hardware.Quantity, float, Provenance]]:
    """Return every known quantity of a GPU type, its value and its source."""
    values, sources = user_hardware.gpu_form_values(entry.spec), known.gpu_sources(entry)
    default = sources[""]  # of all quantities without a source of their own
    figures = []
    for quantity in user_hardware.GPU:
        if quantity.name not in values:
            continue
        # The name under which the catalogue has its source: quantities may share one.
        source_name = quantity.attribute
        if quantity.attribute in BYTES:
            source_name = "peak_flops"
        elif quantity.attribute == "gpus_per_node":
            source_name = "link_bytes_s"
        figures.append((quantity, values[quantity.name], sources.get(source_name, default)))
    return figures


def _price_order(price: known.PriceRow) -> tuple[bool, float]:
    """Return the sort key of an offer: on-demand prices first, then spot, in USD per GPU-hour."""
    on_demand = price.usd_per_gpu_hour
    return on_demand is None, on_demand or price.spot_usd_per_gpu_hour or 0.0


def _edit(
    request: Request,
    row: Any,
    form_class: Any,
    quantities: dict[str, Any],
    what: str,
    known_model: ModelSpec | None = None,
) -> HttpResponse:
    """Show the form for a GPU type or model (``what``), or save it and show the result.

    ``row`` is the stored one, None for a new one. ``quantities`` are its present values. The memory
    of a ``known_model``, whose shape is known, follows from that shape, not from the form.
    """
    described = {"name": row.name, "kind": row.kind, "source": row.source} if row else {}
    posted = request.POST if request.method == "POST" else None
    form = form_class(posted, initial=quantities | described)
    context = {"form": form, "row": row, "what": what}
    if request.method != "POST":
        return render(request, "web/hardware_edit.html", context)
    saved, problem = attempt(form, lambda: _save(request, row, form, what, known_model))
    if saved is None:
        return render_form(request, "web/hardware_edit.html", context, problem)
    messages.success(request, f"{saved.name} is saved.")
    return redirect(f"web:{what}", saved.name)


def _save(request: Request, row: Any, form: Any, what: str, known_model: ModelSpec | None) -> Any:
    """Save the GPU type or model in a valid form.

    ``known_model`` is a model whose shape is known; its facts are stored in place of the form's.
    """
    save = hardware.gpu_save if what == "gpu" else hardware.model_save
    facts: Any = known_model or form.facts()
    return save(
        user=request.user,
        name=form.cleaned_data["name"],
        facts=facts,
        source=form.cleaned_data["source"],
        kind=form.cleaned_data["kind"],
        version=version_of(request.POST.get("version", "")),
        row=row,
    )


def _import(request: Request, form: ImportForm) -> list[Any]:
    """Save the GPU types and models in the uploaded file, and return their rows."""
    file = form.cleaned_data["file"]
    return imports.hardware_import(
        user=request.user,
        data=file.read(imports.MAX_BYTES + 1),
        file_name=file.name,
        name=form.cleaned_data["name"],
    )


def quantity_field(quantity: user_hardware.Quantity) -> forms.Field:
    """Return a number field for a quantity, with its unit and its limits."""
    number_field: Any = forms.IntegerField if quantity.whole else forms.FloatField
    field: forms.Field = number_field(
        label=f"{quantity.label}, {quantity.unit}" if quantity.unit else quantity.label,
        required=quantity.required,
        widget=forms.NumberInput(attrs={"step": "1" if quantity.whole else "any"}),
        help_text=quantity.hint,
        min_value=quantity.low,
        max_value=quantity.high,
    )
    return field


class _HardwareForm(forms.Form):
    """A form for the name of a GPU type or model, its quantities and their source.

    ``words`` names further fields, which are text.
    """

    quantities: tuple[user_hardware.Quantity, ...] = ()
    words: tuple[str, ...] = ()

    name = forms.CharField(max_length=80, label="Name")
    kind = forms.ChoiceField(
        choices=[(k, k) for k in KINDS], initial="published", label="Origin of the figures"
    )
    source = forms.CharField(
        max_length=500,
        label="Source",
        required=False,
        widget=forms.TextInput(attrs={"placeholder": "data sheet, page, measurement"}),
        help_text="Shown with results that use them.",
    )

    def __init__(self, *args: Any, has_shape: bool = False, **kwargs: Any) -> None:
        """Create the form; with ``has_shape``, quantities follow from a shape and are read-only."""
        super().__init__(*args, **kwargs)
        for quantity in self.quantities:
            field = self.fields[quantity.name] = quantity_field(quantity)
            if has_shape:
                field.disabled = True
                field.help_text = "Computed from the shape"
        dress(self)

    def quantity_fields(self) -> list[Any]:
        """Return the fields of the quantities."""
        return [self[quantity.name] for quantity in self.quantities]

    def facts(self) -> dict[str, Any]:
        """Return the filled fields as catalogue.user_hardware takes them."""
        names = [*(quantity.name for quantity in self.quantities), *self.words]
        values = {name: self.cleaned_data.get(name) for name in names}
        return {name: value for name, value in values.items() if value not in (None, "")}


class GpuForm(_HardwareForm):
    quantities = user_hardware.GPU
    words = ("family",)
    family = forms.CharField(
        max_length=40,
        required=False,
        label="Architecture",
        widget=forms.TextInput(attrs={"placeholder": "hopper, ada, cdna3 ..."}),
    )


class ModelForm(_HardwareForm):
    quantities = user_hardware.MODEL


class ImportForm(DressedForm):
    """A file that describes GPUs or models, or a model's config.json."""

    file = forms.FileField(
        label="File", error_messages={"empty": "The file is empty. Choose another."}
    )
    name = forms.CharField(
        max_length=80,
        required=False,
        label="Name of the model",
        help_text="Needed for a config.json, which has no name.",
    )
