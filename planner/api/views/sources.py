import math
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiResponse, extend_schema_field
from rest_framework import exceptions, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.filters import ListView, lists
from planner.api.schema import LOCATION, operation, removal
from planner.api.serializers.fields import (
    FieldsByName,
    FiniteField,
    LinkField,
    RelatedText,
    StrictSerializer,
    TypedField,
    Values,
)
from planner.domain.serialise import as_json
from planner.inputs.live.samples import COUNTED, FIGURES, HISTOGRAM_FIELDS, KEYS, WORDS
from planner.inputs.live.settings import KINDS
from planner.models import Source, SourceReading
from planner.selectors.traces import source_gaps, source_get, source_series, sources_list
from planner.services import sources as services
from planner.services.source_reading import Preview, source_preview, source_request_reading

SETTINGS = "By kind. " + " ".join(
    f"{kind}: {', '.join(model.model_fields) or 'nothing'}." for kind, model in KINDS.items()
)
PROMETHEUS = {"url": "https://prometheus.example:9090", "match": {"namespace": "prod"}}
UPPER_LIMITS = {"kv_use": 1}  # a share


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

    owner = RelatedText("owner.username")
    settings = serializers.DictField()
    found = serializers.DictField(help_text="Engines and queries, or files, of the source.")
    speed = serializers.ListField(
        child=serializers.DictField(),
        help_text="Iteration times of active plans at the last reading, relative to "
        "the profile (times, low, high). flagged: drift.",
    )
    read_to = serializers.DateTimeField(source="read_until", allow_null=True)
    bins = TypedField(
        int, lambda row: source_gaps(row).bins, help_text="Number of bins, over all series."
    )
    gaps = TypedField(
        int, lambda row: source_gaps(row).missing, help_text="Number of bins without data."
    )
    links = SourceLinks(source="*", read_only=True)

    class Meta:
        model = Source
        fields = [
            "id", "name", "kind", "settings", "bin_s", "every_s", "paused", "state", "problem",
            "read_at", "read_to", "due_at", "found", "speed", "bins", "gaps", "owner", "created_at",
            "links",
        ]  # fmt: skip


class SourceKindRequest(StrictSerializer):
    """The source to read; ``preview`` takes the same."""

    kind = serializers.ChoiceField(choices=Source.Kind.choices)
    settings = serializers.DictField(required=False, default=dict, help_text=SETTINGS)


class SourceRequest(SourceKindRequest):
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

    def get_fields(self) -> FieldsByName:
        """Return a field for the time, and for each label, figure and histogram of a bin."""
        labels = {key: serializers.CharField(max_length=80, required=False) for key in KEYS}
        figures = {
            name: FiniteField(
                required=False, min_value=0, max_value=UPPER_LIMITS.get(name), help_text=WORDS[name]
            )
            for name in FIGURES
        }
        histograms = {
            name: Histogram(required=False, help_text=f"{WORDS[quantity]}: count by upper bound.")
            for name, quantity in HISTOGRAM_FIELDS.items()
        }
        return super().get_fields() | labels | figures | histograms


class SamplesRequest(StrictSerializer):
    samples = SampleRow(many=True, allow_empty=False)


class SeriesQuery(serializers.Serializer[Any]):
    start = serializers.DateTimeField(
        required=False, help_text="Start of the period. Default: one day before the end."
    )
    end = serializers.DateTimeField(required=False)


class Bin(serializers.Serializer[Any]):
    bin_start = serializers.IntegerField(help_text="Start of the bin, s since the epoch.")

    def get_fields(self) -> FieldsByName:
        """Return a field for the start of the bin, each label and each figure."""
        figures = {
            name: serializers.FloatField(allow_null=True, help_text=WORDS[name]) for name in FIGURES
        }
        return _label_fields() | super().get_fields() | figures


class Bucket(serializers.Serializer[Any]):
    bin_start = serializers.IntegerField()
    what = serializers.CharField(help_text=f"Quantity: {', '.join(COUNTED)}.")
    least = serializers.FloatField(help_text="Lower bound of the bucket.")
    most = serializers.SerializerMethodField(
        help_text="Upper bound of the bucket. null: the last one."
    )
    count = serializers.FloatField()

    def get_fields(self) -> FieldsByName:
        return _label_fields() | super().get_fields()

    @extend_schema_field({"type": ["number", "null"]})
    def get_most(self, row: Values) -> float | None:
        return row["most"] if math.isfinite(row["most"]) else None


def _label_fields() -> FieldsByName:
    return {key: serializers.CharField() for key in KEYS}


class SourceSeries(serializers.Serializer[Any]):
    name = serializers.CharField()
    bin_s = serializers.IntegerField()
    bins = Bin(many=True)
    histograms = Bucket(many=True)


MOST_BINS = 50_000  # most bins in one answer


@lists(SourceItem, rows=sources_list)
class SourceListView(ListView[Source]):
    """List live sources."""

    @operation(
        {201: SourceItem}, request=SourceRequest, parameters=[LOCATION],
        examples={
            "A Prometheus": {"name": "chat-live", "kind": "prometheus", "settings": PROMETHEUS},
            "Samples of a program": {"name": "own-counts", "kind": "samples", "bin_s": 60},
        },
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Create a live source.

        HEADROOM_SOURCES must list its address, or HEADROOM_SOURCE_FOLDERS its folder. Secrets are
        named by environment variables that begin with HEADROOM_SOURCE_.
        """
        sent = valid(SourceRequest(data=request.data))
        source = services.source_create(owner=self.user, **sent)
        return self.row_response(SourceItem, source, status.HTTP_201_CREATED)


class SourcePreviewView(ApiView):
    @operation(
        {200: Preview}, request=SourceKindRequest,
        examples={"A Prometheus": {"kind": "prometheus", "settings": PROMETHEUS}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Preview what a source would read; nothing is stored."""
        sent = valid(SourceKindRequest(data=request.data))
        preview = source_preview(user=self.user, kind=sent["kind"], fields=sent["settings"])
        return Response(as_json(preview))


class SourceView(ApiView):
    @operation({200: SourceItem})
    def get(self, request: Request, name: str) -> Response:
        """Get a live source."""
        return self.row_response(SourceItem, source_get(name))

    @operation({200: SourceItem}, request=SourceChange, examples={"A pause": {"paused": True}})
    def patch(self, request: Request, name: str) -> Response:
        """Change a source's settings or its interval, or pause it.

        Data read so far stays. `settings` replace all current settings.
        """
        sent = valid(SourceChange(data=request.data))
        source = services.source_change(source=source_get(name), user=self.user, changes=sent)
        return self.row_response(SourceItem, source)

    @removal
    def delete(self, request: Request, name: str) -> None:
        """Remove a source with all its data.

        It is refused while a scenario names it.
        """
        services.source_delete(source=source_get(name), user=self.user)


class SourceReadView(ApiView):
    @operation(
        {200: OpenApiResponse(SourceItem, "Started. read_at and problem show when it is done.")},
        request=None,
    )  # fmt: skip
    def post(self, request: Request, name: str) -> Response:
        """Read a source now, even if it is not due."""
        source = source_request_reading(source=source_get(name), user=self.user)
        return self.row_response(SourceItem, source)


class SourceSamplesView(ApiView):
    @operation(
        {200: services.SamplesSummary}, request=SamplesRequest,
        examples={
            "Two bins": {
                "samples": [
                    {"time": "2026-04-01T10:00:00Z", "model": "llama-3.1-8b", "requests": 310,
                     "input_tokens": 402000, "output_tokens": 66000},
                    {"time": "2026-04-01T10:05:00Z", "model": "llama-3.1-8b", "requests": 298},
                ]
            }
        },
    )  # fmt: skip
    def post(self, request: Request, name: str) -> Response:
        """Send samples of whole bins to a source of kind samples.

        It is safe to repeat: a bin that is sent again is replaced, not counted twice. Late bins are
        accepted.
        """
        source = source_get(name)
        sent = valid(SamplesRequest(data=request.data))
        summary = services.samples_store(
            source=source, user=self.user, rows=sent["samples"], now=timezone.now()
        )
        return Response(as_json(summary))


@lists(Reading)
class SourceReadingsView(ListView[SourceReading]):
    """List readings of a source, newest first: periods, files and errors."""

    def get_queryset(self) -> QuerySet[SourceReading]:
        if getattr(self, "swagger_fake_view", False):
            return SourceReading.objects.none()
        return source_get(self.kwargs["name"]).readings.all()  # newest first


class SourceSeriesView(ApiView):
    @operation({200: SourceSeries}, parameters=[SeriesQuery])
    def get(self, request: Request, name: str) -> Response:
        """Get the data of a source per bin: amounts, gauges and histograms; null is a gap."""
        query = valid(SeriesQuery(data=request.query_params))
        source = source_get(name)
        end = query.get("end") or timezone.now()
        start = query.get("start") or end - timedelta(days=1)
        if (end - start).total_seconds() / source.bin_s > MOST_BINS:
            raise exceptions.ValidationError(
                {"start": f"More than {MOST_BINS:,} bins of {source.bin_s} s. Ask for less."}
            )
        samples = source_series(source, start, end)
        answer = {
            "name": source.name,
            "bin_s": source.bin_s,
            "bins": samples.bins.to_dicts(),
            "histograms": samples.histograms.to_dicts(),
        }
        return Response(SourceSeries(answer).data)
