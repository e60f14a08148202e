import math
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from planner.api.serializers.links import LinkField
from planner.api.serializers.strict_fields import FiniteField, StrictSerializer
from planner.inputs.live.samples import HISTOGRAM_FIELDS
from planner.models import Source, SourceReading
from planner.selectors.sources import source_gaps

SETTINGS = (
    "By kind. prometheus: url, and engine, match, model, model_label, region, region_label, tier, "
    "tier_label, token_env, user_env, password_env, days, delay_s, late_s. folder: path, and "
    "format, mapping, model, region, tier, timezone. bucket: url, bucket, and prefix, "
    "signing_region, access_key_env, secret_key_env, session_token_env, and the options of folder. "
    "samples: nothing."
)
PROMETHEUS = {"url": "https://prometheus.example:9090", "match": {"namespace": "prod"}}


class SourceLinks(serializers.Serializer[Any]):
    self = LinkField("source", "name", "name")
    readings = LinkField("source-readings", "name", "name")
    series = LinkField("source-series", "name", "name")
    trace = LinkField(
        "trace", "name", "trace.name", allow_null=True,
        help_text="Trace of the source. null: no request counted yet.",
    )  # fmt: skip


class SourceItem(serializers.ModelSerializer[Source]):
    """A live source; a scenario uses it like a trace."""

    owner = serializers.CharField(source="owner.username", default=None, allow_null=True)
    settings = serializers.DictField()
    found = serializers.DictField(help_text="Engines and queries, or files, of the source.")
    speed = serializers.ListField(
        child=serializers.DictField(),
        help_text="Iteration times of active plans at the last reading, relative to "
        "the profile (times, low, high). flagged: drift.",
    )
    read_to = serializers.DateTimeField(source="read_until", allow_null=True)
    bins = serializers.SerializerMethodField(help_text="Number of bins, over all series.")
    gaps = serializers.SerializerMethodField(help_text="Number of bins without data.")
    links = SourceLinks(source="*", read_only=True)

    class Meta:
        model = Source
        fields = [
            "id", "name", "kind", "settings", "bin_s", "every_s", "paused", "state", "problem",
            "read_at", "read_to", "due_at", "found", "speed", "bins", "gaps", "owner", "created_at",
            "links",
        ]  # fmt: skip

    def get_bins(self, source: Source) -> int:
        return source_gaps(source).bins

    def get_gaps(self, source: Source) -> int:
        return source_gaps(source).missing


class SourceAsked(StrictSerializer):
    """The source to read; ``preview`` takes the same."""

    kind = serializers.ChoiceField(choices=Source.Kind.choices)
    settings = serializers.DictField(required=False, default=dict, help_text=SETTINGS)


class SourceRequest(SourceAsked):
    name = serializers.CharField(max_length=80, help_text="Small letters, digits and hyphens.")
    bin_s = serializers.IntegerField(min_value=1, max_value=86_400, default=300)
    every_s = serializers.IntegerField(
        min_value=10, max_value=86_400, required=False, help_text="Reading interval, s."
    )


class SourceChange(StrictSerializer):
    settings = serializers.DictField(required=False, help_text=SETTINGS)
    every_s = serializers.IntegerField(min_value=10, max_value=86_400, required=False)
    paused = serializers.BooleanField(required=False)


class Reading(serializers.ModelSerializer[SourceReading]):
    what = serializers.CharField(source="file_name")

    class Meta:
        model = SourceReading
        fields = ["at", "what", "start_at", "end_at", "bins", "requests", "problem"]


class Histogram(serializers.DictField):
    child = FiniteField(min_value=0)


class SampleRow(StrictSerializer):
    """Sums over one bin; a value that is not given is unknown and changes nothing."""

    time = serializers.DateTimeField(help_text="Start of the bin.")
    model = serializers.CharField(max_length=80, required=False)
    region = serializers.CharField(max_length=80, required=False)
    tier = serializers.CharField(max_length=80, required=False)
    requests = FiniteField(min_value=0, required=False)
    input_tokens = FiniteField(min_value=0, required=False)
    output_tokens = FiniteField(min_value=0, required=False)
    waiting = FiniteField(min_value=0, required=False, help_text="Mean of waiting requests.")
    running = FiniteField(min_value=0, required=False, help_text="Mean of running requests.")
    kv_use = FiniteField(min_value=0, max_value=1, required=False)
    replicas = FiniteField(min_value=0, required=False)
    power_w = FiniteField(min_value=0, required=False)
    tbt_mean_s = FiniteField(
        min_value=0,
        required=False,
        help_text="Mean time per output token, s, for speed drift.",
    )
    input_lengths = Histogram(
        required=False, help_text="Number of requests by upper bound in tokens."
    )
    output_lengths = Histogram(required=False)
    ttft = Histogram(required=False, help_text="Number of requests by upper bound in seconds.")
    tbt = Histogram(required=False)
    e2e = Histogram(required=False)


assert set(HISTOGRAM_FIELDS) <= set(SampleRow().fields)


class SamplesRequest(StrictSerializer):
    samples = SampleRow(many=True, allow_empty=False)


class SamplesTaken(serializers.Serializer[Any]):
    bins = serializers.IntegerField()
    requests = serializers.FloatField()
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()


class SeriesAsked(serializers.Serializer[Any]):
    start = serializers.DateTimeField(
        required=False, help_text="Start of the period. Default: one day before the end."
    )
    end = serializers.DateTimeField(required=False)


class Bin(serializers.Serializer[Any]):
    model = serializers.CharField()
    region = serializers.CharField()
    tier = serializers.CharField()
    bin_start = serializers.IntegerField(help_text="Start of the bin, s since the epoch.")
    requests = serializers.FloatField(allow_null=True)
    input_tokens = serializers.FloatField(allow_null=True)
    output_tokens = serializers.FloatField(allow_null=True)
    waiting = serializers.FloatField(allow_null=True)
    running = serializers.FloatField(allow_null=True)
    kv_use = serializers.FloatField(allow_null=True)
    replicas = serializers.FloatField(allow_null=True)
    power_w = serializers.FloatField(allow_null=True)
    tbt_mean_s = serializers.FloatField(allow_null=True)


class Bucket(serializers.Serializer[Any]):
    model = serializers.CharField()
    region = serializers.CharField()
    tier = serializers.CharField()
    bin_start = serializers.IntegerField()
    what = serializers.CharField(
        help_text="Quantity: input_tokens, output_tokens, ttft_s, tbt_s or e2e_s."
    )
    least = serializers.FloatField(help_text="Lower bound of the bucket.")
    most = serializers.SerializerMethodField(
        help_text="Upper bound of the bucket. null: the last one."
    )
    count = serializers.FloatField()

    @extend_schema_field({"type": ["number", "null"]})
    def get_most(self, row: dict[str, Any]) -> float | None:
        return row["most"] if math.isfinite(row["most"]) else None


class SourceSeries(serializers.Serializer[Any]):
    name = serializers.CharField()
    bin_s = serializers.IntegerField()
    bins = Bin(many=True)
    histograms = Bucket(many=True)
