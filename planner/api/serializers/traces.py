from __future__ import annotations

import math
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.reverse import reverse

from planner.api.serializers.runs import RunDetail
from planner.api.serializers.strict_fields import FiniteField
from planner.models import Trace


class TraceLinks(serializers.Serializer[Any]):
    self = serializers.URLField()
    demand = serializers.URLField()
    character = serializers.URLField()
    runs = serializers.URLField()


class TraceItem(serializers.ModelSerializer[Trace]):
    """A trace as lists show it; times are null if the file has relative times."""

    owner = serializers.CharField(source="owner.username", default=None, allow_null=True)
    links = serializers.SerializerMethodField()

    class Meta:
        model = Trace
        fields = [
            "id", "name", "file_name", "state", "problem", "kind", "format", "requests", "rejected",
            "start_at", "end_at", "bytes", "owner", "created_at", "links",
        ]  # fmt: skip

    @extend_schema_field(TraceLinks)
    def get_links(self, trace: Trace) -> dict[str, str]:
        request = self.context.get("request")
        named = {"name": trace.name}
        return {
            "self": reverse("api:trace", kwargs=named, request=request),
            "demand": reverse("api:trace-demand", kwargs=named, request=request),
            "character": reverse("api:trace-character", kwargs=named, request=request),
            "runs": f"{reverse('api:runs', request=request)}?trace={trace.name}",
        }


class TraceDetail(TraceItem):
    """A trace with its full import report."""

    options = serializers.DictField(help_text="How the file was read.")
    report = serializers.DictField(help_text="Counts, refused rows, times, series; as `ingest`.")

    class Meta(TraceItem.Meta):
        fields = [*TraceItem.Meta.fields, "options", "report"]


class UploadDone(serializers.Serializer[Any]):
    trace = TraceDetail()
    run = RunDetail(allow_null=True, help_text="The run that reads the file, to be polled.")
    known = serializers.BooleanField(help_text="The same file, read in the same way, was there.")


class DemandAsked(serializers.Serializer[Any]):
    bin_s = FiniteField(
        min_value=1,
        max_value=7 * 86400,
        required=False,
        help_text="Bin width in seconds, 900 unless given; a demand file comes in its own bins.",
    )


@extend_schema_field({"type": "array", "items": {"type": ["number", "null"]}})
class AmountsField(serializers.Field[Any, Any, Any, Any]):
    """An array of amounts; NaN becomes null."""

    def to_representation(self, value: Any) -> list[float | None]:
        return [None if math.isnan(amount) else amount for amount in value.tolist()]


class SeriesDemand(serializers.Serializer[Any]):
    """Sums per bin; null is a gap. Amounts that the file does not hold are null as a whole."""

    name = serializers.CharField()
    model = serializers.CharField(allow_null=True)
    region = serializers.CharField(allow_null=True)
    tier = serializers.CharField(allow_null=True)
    start_s = serializers.FloatField(help_text="Left edge of the first bin; s since the epoch.")
    bin_s = serializers.FloatField()
    requests = AmountsField()
    input_tokens = AmountsField(allow_null=True)
    output_tokens = AmountsField(allow_null=True)
    total_tokens = AmountsField(allow_null=True)


class Demand(serializers.Serializer[Any]):
    trace = serializers.CharField()
    clock = serializers.CharField(help_text="utc, or relative: the trace then starts at epoch 0.")
    series = SeriesDemand(many=True)


class TracePreview(serializers.Serializer[Any]):
    """The first rows of a refused file, unchanged."""

    columns = serializers.ListField(child=serializers.CharField())
    rows = serializers.ListField(child=serializers.ListField(child=serializers.CharField()))
    guess = serializers.DictField(
        child=serializers.CharField(), help_text="Field by column, where its name is well known."
    )
