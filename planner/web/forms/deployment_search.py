"""Define the form of the deployment search: the model, the limits and the hardware."""

import json
from typing import Any

from django import forms
from django.http import QueryDict

from planner.domain.deployment_search.candidates import PRECISIONS
from planner.domain.deployment_search.query import MOST_MS, MOST_RPS, MOST_TOKENS, DeploymentQuery
from planner.errors import PlannerError
from planner.web.forms.widgets import DressedForm
from simulation.performance.estimate.calibration import ENGINES

FIELDS = ("model", "isl", "osl", "ttft_ms", "tbt_ms", "rps")


def _number(label: str, most: float, initial: float | None = None, **more: Any) -> forms.FloatField:
    widget = forms.NumberInput(attrs={"step": "any"})
    return forms.FloatField(
        label=label, required=False, min_value=1e-6, max_value=most, initial=initial, widget=widget,
        **more,
    )  # fmt: skip


def _tokens(label: str, initial: int) -> forms.IntegerField:
    return forms.IntegerField(label=label, min_value=1, max_value=MOST_TOKENS, initial=initial)


class ConfigureForm(DressedForm):
    model = forms.CharField(
        label="Model", max_length=200, initial="llama-3.3-70b",
        widget=forms.TextInput(attrs={"list": "model-names"}),
    )  # fmt: skip
    isl = _tokens("Input tokens", 1024)
    osl = _tokens("Output tokens", 256)
    ttft_ms = _number("TTFT limit, ms", MOST_MS, 1000, help_text="Of 95% of requests.")
    tbt_ms = _number("TPOT limit, ms", MOST_MS, 50, help_text="Of 95% of requests.")
    rps = _number(
        "Requests per second",
        MOST_RPS,
        help_text="Of the fleet. Default: rank by $ per token.",
    )
    gpus = forms.CharField(
        label="GPUs you have", required=False, max_length=2000,
        widget=forms.TextInput(attrs={"list": "gpu-names", "placeholder": "all"}),
        help_text="GPU types, separated by commas.",
    )  # fmt: skip
    engine = forms.ChoiceField(
        label="Engine", required=False, choices=[("", "any"), *((e, e) for e in ENGINES)]
    )
    precision = forms.ChoiceField(
        label="Precision of weights", required=False,
        choices=[("", "any"), *((p, p) for p in PRECISIONS)],
    )  # fmt: skip
    prices = forms.CharField(
        label="Own prices", required=False, max_length=4000,
        widget=forms.TextInput(attrs={"placeholder": "H100-SXM=2.50, B200=4"}),
        help_text="$ per GPU-hour. Default: median on-demand price.",
    )  # fmt: skip

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

    def asked(self) -> DeploymentQuery:
        """Return the search in the form; raise PlannerError for an invalid value."""
        values = self.cleaned_data
        gpus = tuple(name.strip() for name in values["gpus"].split(",") if name.strip())
        return DeploymentQuery(
            **{name: values[name] for name in FIELDS},
            gpus=gpus,
            engines=(values["engine"],) if values["engine"] else ENGINES,
            precisions=(values["precision"],) if values["precision"] else (),
            prices=values["prices"],
        )


def chosen_posted(posted: QueryDict) -> dict[str, Any]:
    """Return keyword arguments for ``scenario_with_deployments`` from the selected rows."""
    kind, _, name = posted.get("base", "").partition(":")
    try:
        chosen = [row for text in posted.getlist("chosen") for row in json.loads(text)]
        limits = {
            key: float(value) if (value := posted.get(key, "")) else None
            for key in ("ttft_ms", "tbt_ms")
        }
        if not all(isinstance(row, dict) and "gpu" in row for row in chosen):
            raise ValueError
    except (ValueError, TypeError):
        raise PlannerError("The selection is not valid. Search again.") from None
    into = {"model": posted.get("model", ""), "profiles": chosen, "limits": limits}
    return into | ({kind: name} if kind in ("scenario", "trace") else {})
