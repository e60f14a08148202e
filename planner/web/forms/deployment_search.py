"""Define the form of the deployment search: the model, the limits and the hardware."""

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.http import QueryDict

from planner.domain.deployment_search.candidates import PRECISIONS
from planner.domain.deployment_search.query import ASKED, RELEASED, DeploymentQuery
from planner.domain.options import options_of
from planner.errors import PlannerError
from planner.services.draft_windows import DAY_S, HORIZONS
from planner.services.launch_drafts import LaunchDescription
from planner.web.forms.launch import next_monday
from planner.web.forms.options import option_field
from planner.web.forms.widgets import dress
from simulation.performance.estimate.calibration import ENGINES

FIELDS = ("model", "isl", "osl", "ttft_ms", "tbt_ms", "rps")
TTFT_MS, TBT_MS = 1000, 50
INITIAL = {
    "model": "llama-3.3-70b", "isl": 1024, "osl": 256, "ttft_ms": TTFT_MS, "tbt_ms": TBT_MS,
}  # fmt: skip


class ConfigureForm(forms.Form):
    gpus = forms.CharField(
        label="GPUs you have", required=False, max_length=2000,
        widget=forms.TextInput(attrs={"list": "gpu-names", "placeholder": "all, or H100-SXM, L4"}),
    )  # fmt: skip
    engine = forms.ChoiceField(
        label="Engine", required=False, choices=[("", "any"), *((e, e) for e in ENGINES)]
    )
    precision = forms.ChoiceField(
        label="Precision of weights", required=False, initial=RELEASED,
        choices=[("", "any"), (RELEASED, "as released"), *((p, p) for p in PRECISIONS)],
    )  # fmt: skip
    prices = forms.CharField(
        label="Own prices, $ per GPU-hour", required=False, max_length=4000,
        widget=forms.TextInput(attrs={"placeholder": "H100-SXM=2.50, B200=4"}),
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Add the fields of the searched model and its limits."""
        super().__init__(*args, **kwargs)
        for name in FIELDS:
            self.fields[name] = option_field(ASKED[name])
            self.fields[name].initial = INITIAL.get(name)
        for name in ("model", "isl", "osl"):
            self.fields[name].required = True
        for name in ("ttft_ms", "tbt_ms"):
            self.fields[name].help_text = ""  # the heading says for how many requests
        self.fields["rps"].help_text = ""
        self.fields["rps"].widget.attrs["placeholder"] = "any"
        self.fields["model"].widget.attrs["list"] = "model-names"
        dress(self)

    def clean_prices(self) -> dict[str, float]:
        """Return prices by GPU type from text such as "H100-SXM=2.50, L4=0.6"."""
        prices: dict[str, float] = {}
        for part in self.cleaned_data["prices"].replace("\n", ",").split(","):
            if not part.strip():
                continue
            name, _, value = part.partition("=")
            try:
                prices[name.strip()] = float(value)
            except ValueError:
                raise forms.ValidationError(
                    f"{part.strip()[:60]} is not GPU=DOLLARS, such as H100-SXM=2.50."
                ) from None
        return prices

    def query(self) -> DeploymentQuery:
        """Return the search in the form; raise PlannerError for an invalid value."""
        values = self.cleaned_data
        query = {name: values[name] for name in (*FIELDS, "prices") if values[name] is not None}
        query["gpus"] = [name.strip() for name in values["gpus"].split(",") if name.strip()]
        # The form takes one engine and one precision, the search takes several.
        if values["engine"]:
            query["engines"] = [values["engine"]]
        if values["precision"]:
            query["precisions"] = [values["precision"]]
        return options_of(DeploymentQuery, query)


def chosen_deployments(posted: QueryDict) -> dict[str, Any]:
    """Return the arguments for ``scenario_with_deployments`` from the rows that a user selected.

    Each row of ``chosen`` is a JSON list of profiles. ``base`` says where the traffic comes from:
    scenario:NAME, trace:NAME, or requests for a launch of the searched requests. Raises
    PlannerError if a value is not valid, which a form of ours never sends.
    """
    base_kind, _, base_name = posted.get("base", "").partition(":")
    try:
        profiles = [profile for row in posted.getlist("chosen") for profile in json.loads(row)]
        if not all(isinstance(profile, dict) and "gpu" in profile for profile in profiles):
            raise ValueError
        limits_ms: dict[str, float | None] = {}
        for name in ("ttft_ms", "tbt_ms"):
            limit_ms = posted.get(name, "")
            limits_ms[name] = float(limit_ms) if limit_ms else None
        model = posted.get("model", "")
        if not model and profiles:
            model = str(profiles[0]["model"])
        arguments: dict[str, Any] = {"model": model, "profiles": profiles, "limits": limits_ms}
        if base_kind == "requests" and profiles:
            arguments["launch"] = _launch(posted, str(profiles[0]["gpu"]), limits_ms)
    except (ValueError, TypeError, LookupError):
        raise PlannerError("The selection is not valid. Search again.") from None
    if base_kind in ("scenario", "trace"):
        arguments[base_kind] = base_name
    return arguments


def _launch(posted: QueryDict, gpu: str, limits: Mapping[str, float | None]) -> LaunchDescription:
    """Return a launch with a steady rate of requests as long as those searched for."""
    rps, isl, osl = (float(posted.get(name, "")) for name in ("rps", "isl", "osl"))
    return LaunchDescription(
        model=posted.get("model", ""), gpu=gpu, region="", requests_per_day=DAY_S * rps,
        input_tokens=isl, output_tokens=osl, day="flat", weekend=None, utc_offset_h=0,
        growth_per_month=0, begins=next_monday(), ttft_ms=limits["ttft_ms"] or TTFT_MS,
        tbt_ms=limits["tbt_ms"] or TBT_MS, horizon=HORIZONS["week"],
    )  # fmt: skip
