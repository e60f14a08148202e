"""Answer a question without a trace on one small form."""

from typing import Any

from django import forms
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from planner.errors import EXPECTED
from planner.services.quick_size import MAX_USERS, SizeQuestion, quick_size
from planner.web.forms.widgets import DressedForm
from planner.web.hardware_names import choice_names
from planner.web.request import Request
from simulation.performance.estimate.defaults import MOST_HITS

MOST_TOKENS, MOST_MS, MOST_RPS = 10_000_000, 1e8, 1e6
ANY = {"step": "any"}


@require_safe
def page(request: Request) -> HttpResponse:
    """Show the form and, if the URL has values, the answer; htmx replaces only the answer."""
    asked = "model" in request.GET
    form = QuickSizeForm(DEFAULTS | request.GET.dict()) if asked else QuickSizeForm()
    context: dict[str, Any] = {"form": form, "asked": asked}
    if asked and form.is_valid():
        try:
            context["found"] = quick_size(form.question())
        except EXPECTED as problem:
            context["problem"] = str(problem)
    if request.htmx and request.htmx.target == "answer":
        return render(request, "web/_quick_size.html", context)
    return render(request, "web/quick_size.html", context | choice_names())


def _name(label: str, names: str, initial: str) -> forms.CharField:
    widget = forms.TextInput(attrs={"list": names})
    return forms.CharField(label=label, max_length=200, initial=initial, widget=widget)


def _tokens(label: str, initial: int) -> forms.IntegerField:
    return forms.IntegerField(label=label, min_value=1, max_value=MOST_TOKENS, initial=initial)


def _limit(label: str, initial: float) -> forms.FloatField:
    widget = forms.NumberInput(attrs=ANY)
    return forms.FloatField(
        label=label, min_value=0.001, max_value=MOST_MS, initial=initial, widget=widget
    )


class QuickSizeForm(DressedForm):
    model = _name("Model", "model-names", "llama-3.1-70b")
    gpu = _name("GPU or cloud instance", "gpu-names", "H100-SXM")
    users = forms.IntegerField(
        label="Users at once", required=False, min_value=1, max_value=MAX_USERS, initial=50
    )
    rps = forms.FloatField(
        label="or requests/s",
        required=False,
        min_value=1e-6,
        max_value=MOST_RPS,
        widget=forms.NumberInput(attrs=ANY),
    )
    isl = _tokens("Input tokens", 1000)
    osl = _tokens("Output tokens", 500)
    ttft_ms = _limit("TTFT limit, ms", 2000)
    tbt_ms = _limit("TPOT limit, ms", 50)
    cached_share = forms.FloatField(
        label="Cached share of input",
        min_value=0,
        max_value=MOST_HITS,
        initial=0,
        required=False,
        widget=forms.NumberInput(attrs=ANY),
    )

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if values.get("rps") is not None and "users" not in self.changed_data:
            values["users"] = None  # the form begins with users; a rate replaces them
        given = [name for name in ("users", "rps") if values.get(name) is not None]
        if len(given) != 1 and not self.errors:
            self.add_error("users", "Give either users or requests/s.")
        return values

    def question(self) -> SizeQuestion:
        values = self.cleaned_data
        return SizeQuestion(**values | {"cached_share": values["cached_share"] or 0.0})


# A link need not give what has a default; its load is in users or in requests/s.
DEFAULTS = {
    name: field.initial
    for name, field in QuickSizeForm.base_fields.items()
    if field.initial is not None and name != "users"
}
