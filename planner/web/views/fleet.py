"""Import the current deployment into a scenario from a file or pasted text."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from planner.inputs.fleet.reading import MAX_CHARACTERS
from planner.models import Scenario
from planner.selectors.scenarios import scenario_get
from planner.services.fleet_imports import Given, Imported, fleet_import
from planner.web.errors import planners_only
from planner.web.form_responses import attempt, refused
from planner.web.forms.widgets import DressedForm
from planner.web.hardware_names import choice_names
from planner.web.request import Request

MAX_BYTES = 4 * MAX_CHARACTERS  # a UTF-8 character has at most four bytes
TEMPLATE = "web/fleet.html"


@require_http_methods(["GET", "POST"])
@planners_only
def of_scenario(request: Request, pk: int) -> HttpResponse:
    """Read a file or pasted text, and write its fleet into a scenario as today's fleet."""
    scenario = scenario_get(str(pk))
    context = {"scenario": scenario} | choice_names()
    if request.method != "POST":
        return render(request, TEMPLATE, context | {"form": FleetForm()})
    form = FleetForm(request.POST, request.FILES)
    imported, problem = attempt(form, lambda: _import(request, scenario, form))
    if imported is None:
        return refused(request, TEMPLATE, form, problem, **context)
    replicas = sum(pool.replicas or 0 for pool in imported.pools)
    messages.success(
        request, f"Fleet of today: {len(imported.pools)} pools, {replicas:,} replicas stated."
    )
    for note in imported.notes:
        messages.info(request, note)
    return redirect("web:scenario", pk)


def _import(request: Request, scenario: Scenario, form: FleetForm) -> Imported:
    """Save the fleet of a valid form in the scenario, and return what was read."""
    values = form.cleaned_data
    given = Given(**{name: values[name] for name in Given.__slots__})
    text, name = form.text_and_name()
    return fleet_import(scenario=scenario, user=request.user, text=text, name=name, given=given)[1]


def _optional_field(label: str, datalist: str = "") -> forms.CharField:
    """Return an optional text field, which offers the names of the page's ``datalist``."""
    widget = forms.TextInput(attrs={"list": datalist} if datalist else {})
    return forms.CharField(label=label, max_length=200, required=False, widget=widget)


class FleetForm(DressedForm):
    """A form for a file or pasted text, and for facts that it does not state."""

    file = forms.FileField(
        label="File", required=False, help_text="Kubernetes YAML or Helm values."
    )
    text = forms.CharField(
        label="Or paste",
        required=False,
        max_length=MAX_CHARACTERS,
        widget=forms.Textarea(attrs={"rows": 10, "class": "yaml", "spellcheck": "false"}),
        help_text="YAML, or a launch line such as <code>vllm serve MODEL -tp 4</code>.",
    )
    model = _optional_field("Model", "model-names")
    gpu = _optional_field("GPU or cloud instance", "gpu-names")
    tp = forms.IntegerField(label="GPUs per replica", required=False, min_value=1, max_value=1024)
    region = _optional_field("Region")
    replicas = forms.IntegerField(
        label="Replicas", required=False, min_value=0, max_value=1_000_000
    )

    def clean(self) -> dict[str, Any]:
        """Check that there is a file or a text, and that the file is not too large."""
        values = super().clean() or {}
        if not values.get("file") and not values.get("text", "").strip():
            raise forms.ValidationError("Choose a file or paste a text.")
        if values.get("file") and values["file"].size > MAX_BYTES:
            self.add_error("file", "The file is too large. Split it by deployment.")
        return values

    def text_and_name(self) -> tuple[str, str]:
        """Return the text of the file or field, and its name; what is not UTF-8 is replaced."""
        file = self.cleaned_data["file"]
        if not file:
            return self.cleaned_data["text"], "the pasted text"
        return file.read().decode("utf-8-sig", errors="replace"), file.name
