from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.reverse import reverse

from planner.api.serializers.options import WORK, chosen_values
from planner.api.serializers.strict_fields import StrictSerializer
from planner.domain.kinds.registry import KINDS
from planner.domain.whatif.figures import FIGURES
from planner.domain.whatif.variations import MOST_AXES
from planner.models import Run, Sweep
from planner.selectors.sweeps import DEFAULT


class AxisGiven(StrictSerializer):
    key = serializers.CharField(
        max_length=300,
        help_text="Address such as `tiers[chat].ttft_ms`, or a setting such as `growth`.",
    )
    values = serializers.ListField(
        child=serializers.JSONField(), min_length=1, help_text="null leaves the setting out."
    )


class SweepRequest(StrictSerializer):
    """A stored scenario or a document, and one or two settings with their values."""

    scenario = serializers.CharField(max_length=120, required=False, help_text="Name or id.")
    document = serializers.CharField(required=False, trim_whitespace=False, help_text="YAML.")
    kind = serializers.ChoiceField(WORK, default=Run.Kind.PLAN.value, help_text="Of every run.")
    options = serializers.DictField(required=False, help_text="Of the kind, for every run.")
    vary = serializers.ListField(child=AxisGiven(), min_length=1, max_length=MOST_AXES)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len([name for name in ("scenario", "document") if name in attrs]) != 1:
            raise serializers.ValidationError("Give exactly one of scenario, document.")
        try:
            options = chosen_values(KINDS[attrs["kind"]].options, attrs.get("options", {}))
        except serializers.ValidationError as refused:
            raise serializers.ValidationError({"options": refused.detail}) from None
        return {**attrs, "options": options}


class GridAsked(serializers.Serializer[Any]):
    figure = serializers.ChoiceField(
        [(figure.name, figure.label) for figure in FIGURES],
        default=DEFAULT.name,
        help_text="What the cells show.",
    )


class SweepItem(serializers.ModelSerializer[Sweep]):
    scenario = serializers.CharField(source="scenario.name", default=None, allow_null=True)
    owner = serializers.CharField(source="owner.username", default=None, allow_null=True)
    axes = serializers.ListField(child=serializers.DictField(), help_text="`key` and `values`.")
    link = serializers.SerializerMethodField()

    class Meta:
        model = Sweep
        fields = ["id", "name", "scenario", "kind", "options", "axes", "owner", "created_at",
                  "link"]  # fmt: skip

    def get_link(self, sweep: Sweep) -> str:
        where: str = reverse(
            "api:sweep", kwargs={"number": sweep.pk}, request=self.context.get("request")
        )
        return where
