"""Define the form of a schedule: when to plan again, and which plans take effect without review."""

from __future__ import annotations

from typing import Any

from django import forms

from planner.models import Scenario, Schedule, User
from planner.policies.registry import POLICIES
from planner.selectors.scenarios import scenarios_list
from planner.services.access import may_approve
from planner.web.forms.widgets import dress

FIELDS = ("name", "scenario", "cron", "zone", "kind", "policy")


class ScheduleForm(forms.Form):
    name = forms.CharField(label="Name", max_length=120)
    scenario: forms.ModelChoiceField[Scenario] = forms.ModelChoiceField(
        label="Scenario", queryset=None
    )
    cron = forms.CharField(
        label="When",
        max_length=120,
        initial="0 6 * * 1",
        help_text="Minute, hour, day of month, month, day of week: 0 6 * * 1 is Mondays at 6.",
    )
    zone = forms.CharField(label="Time zone", max_length=64, initial="UTC")
    kind = forms.ChoiceField(label="Run", choices=Schedule.Kind.choices)
    policy = forms.ChoiceField(
        label="Timetable of",
        required=False,
        help_text="For a comparison: the policy to propose, if the scenario has it.",
    )
    replicas = forms.FloatField(
        label="May differ unasked, % of replica-hours",
        required=False,
        min_value=0,
        max_value=1000,
        help_text="Left empty, with the next: every plan is reviewed.",
    )
    cost = forms.FloatField(
        label="May cost more or less unasked, %", required=False, min_value=0, max_value=1000
    )

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["scenario"].queryset = scenarios_list()  # type: ignore[attr-defined]
        policy = self.initial.get("policy", "")  # maybe one with a label, of the API
        names = {"": "the recommended policy"} | POLICIES
        self.fields["policy"].choices = [*({policy: policy} | names).items()]  # type: ignore[attr-defined]
        if not may_approve(user):  # only approvers may let plans take effect without review
            del self.fields["replicas"], self.fields["cost"]
        dress(self)

    def chosen(self) -> dict[str, Any]:
        """Return the arguments of ``schedule_create``."""
        sent = self.cleaned_data
        limits = {"most_replicas": sent.get("replicas"), "most_cost": sent.get("cost")}
        shares = {name: None if value is None else value / 100 for name, value in limits.items()}
        plain = {name: sent[name] for name in FIELDS}
        return {**plain, **shares}
