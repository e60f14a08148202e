"""Answer a question without a trace on one small form."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from planner.domain.options import options_in, options_of
from planner.errors import EXPECTED
from planner.services.quick_size import SizeQuestion, quick_size
from planner.web.forms.options import OptionsForm
from planner.web.forms.widgets import dress
from planner.web.hardware_names import choice_names
from planner.web.request import Request, TemplateContext

INITIAL = {"model": "llama-3.1-70b", "gpu": "H100-SXM", "users": 50}
# Values of fields that a link leaves out. Users have none: a link may give requests/s instead.
DEFAULTS = {
    name: default
    for name, option in options_in(SizeQuestion).items()
    if name != "users" and (default := INITIAL.get(name, option.default)) is not None
}


@require_safe
def page(request: Request) -> HttpResponse:
    """Show the form and, if the URL has values, the answer; htmx replaces only the answer."""
    asked = "model" in request.GET
    form = QuickSizeForm(DEFAULTS | request.GET.dict()) if asked else QuickSizeForm()
    context: TemplateContext = {"form": form, "asked": asked}
    if asked and form.is_valid():
        try:
            context["found"] = quick_size(form.question())
        except EXPECTED as problem:
            context["problem"] = str(problem)
    if request.htmx and request.htmx.target == "answer":
        return render(request, "web/_quick_size.html", context)
    return render(request, "web/quick_size.html", context | choice_names())


class QuickSizeForm(OptionsForm):
    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(SizeQuestion, data=data, initial=INITIAL)
        for name in ("model", "gpu"):
            self.fields[name].widget.attrs["list"] = f"{name}-names"
            self.fields[name].required = True
        dress(self)

    def clean(self) -> dict[str, Any]:
        """Check that there is either a number of users or a rate."""
        values = super().clean() or {}
        if values.get("rps") is not None and "users" not in self.changed_data:
            values["users"] = None  # the form begins with users; a rate replaces them
        given = [name for name in ("users", "rps") if values.get(name) is not None]
        if len(given) != 1 and not self.errors:
            self.add_error("users", "Give either users or requests/s.")
        return values

    def question(self) -> SizeQuestion:
        """Return the question of a valid form."""
        given = {name: value for name, value in self.cleaned_data.items() if value is not None}
        return options_of(SizeQuestion, given)
