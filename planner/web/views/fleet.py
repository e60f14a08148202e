"""Import the current deployment into a scenario from a file or pasted text."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from planner.domain.options import options_in, options_of
from planner.inputs.fleet.reading import MAX_CHARACTERS
from planner.models import Scenario, User
from planner.selectors.scenarios import scenario_get
from planner.services.fleet_imports import ImportedFleet, PoolFacts, fleet_import
from planner.web.errors import planners_only
from planner.web.form_responses import attempt, form_with_errors
from planner.web.forms.options import option_field
from planner.web.forms.widgets import dress
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
    imported, problem = attempt(form, lambda: form.save(scenario, request.user))
    if imported is None:
        return form_with_errors(request, TEMPLATE, form, problem, **context)
    replicas = sum(pool.replicas or 0 for pool in imported.pools)
    messages.success(
        request, f"Current fleet: {len(imported.pools)} pools, {replicas:,} replicas stated."
    )
    for note in imported.notes:
        messages.info(request, note)
    return redirect("web:scenario", pk)


class FleetForm(forms.Form):
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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Add a field for each fact that a file may lack."""
        super().__init__(*args, **kwargs)
        self.fields |= {
            name: option_field(option) for name, option in options_in(PoolFacts).items()
        }
        for name in ("model", "gpu"):
            self.fields[name].widget.attrs["list"] = f"{name}-names"
        dress(self)

    def clean(self) -> dict[str, Any]:
        """Check that there is a file or a text, and that the file is not too large."""
        values = super().clean() or {}
        if not values.get("file") and not values.get("text", "").strip():
            raise forms.ValidationError("Choose a file or paste a text.")
        if values.get("file") and values["file"].size > MAX_BYTES:
            self.add_error("file", "The file is too large. Split it by deployment.")
        return values

    def save(self, scenario: Scenario, user: User) -> ImportedFleet:
        """Write the fleet into the scenario, and return it; bytes that are not UTF-8 are replaced.

        Raises OptionsRefused or ScenarioError with the wrong or missing fact.
        """
        values = self.cleaned_data
        facts = options_of(PoolFacts, {name: values[name] for name in PoolFacts.model_fields})
        text, name = values["text"], "the pasted text"
        file = values["file"]
        if file:
            text, name = file.read().decode("utf-8-sig", errors="replace"), file.name
        _, imported = fleet_import(scenario=scenario, user=user, text=text, name=name, facts=facts)
        return imported
