from dataclasses import dataclass
from typing import Any

from drf_spectacular.utils import OpenApiResponse
from rest_framework import exceptions, serializers
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from planner.api.base import ApiView, idempotency_key, run_response, valid, validated
from planner.api.filters import ListView, StrictFilter, StrictOrdering, TraceFilter, lists
from planner.api.renderers import AcceptHeaderNegotiation
from planner.api.schema import KEY, LOCATION, operation, removal
from planner.api.serializers.fields import (
    FiniteField,
    LinkField,
    RelatedText,
    Values,
    serializer_of,
)
from planner.api.serializers.options import ReadingRequest, UploadRequest
from planner.api.serializers.runs import RunDetail
from planner.domain.serialise import as_json
from planner.domain.trace_statistics.figures import Character
from planner.domain.traffic.window_rank import WindowRank
from planner.errors import NotReady
from planner.inputs.ingest.reader import Preview
from planner.inputs.ingest.store import DemandColumns
from planner.models import Trace
from planner.selectors.traces import (
    ready_trace,
    trace_character,
    trace_demand,
    trace_get,
    trace_window,
    traces_list,
)
from planner.services.access import check_may_plan
from planner.services.traces import trace_delete, trace_preview, trace_reread, trace_upload


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterAnswer(Character):
    """The characterization of a trace, and the rank of the requested window."""

    window: WindowRank | None


class CharacterQuery(serializers.Serializer[Any]):
    start = serializers.DateTimeField(
        required=False, help_text="Start of the window that is ranked among windows of its length."
    )
    end = serializers.DateTimeField(required=False, help_text="End of the window.")

    def validate(self, attrs: Values) -> Values:
        """Raise ValidationError if only one end of the window is given."""
        if len(attrs) == 1:
            raise serializers.ValidationError("Give start and end both, or neither.")
        return attrs


class TraceLinks(serializers.Serializer[Any]):
    self = LinkField("trace", "name", "name")
    demand = LinkField("trace-demand", "name", "name")
    character = LinkField("trace-character", "name", "name")
    runs = serializers.SerializerMethodField()

    def get_runs(self, trace: Trace) -> str:
        return f"{reverse('api:runs', request=self.context.get('request'))}?trace={trace.name}"


class TraceItem(serializers.ModelSerializer[Trace]):
    """A trace as lists show it; times are null if the file has relative times."""

    owner = RelatedText("owner.username")
    links = TraceLinks(source="*", read_only=True)

    class Meta:
        model = Trace
        fields = [
            "id", "name", "file_name", "state", "problem", "kind", "format", "requests", "rejected",
            "start_at", "end_at", "bytes", "owner", "created_at", "links",
        ]  # fmt: skip


class TraceDetail(TraceItem):
    """A trace with its full import report."""

    options = serializers.DictField(help_text="Options with which the file was read.")
    report = serializers.DictField(
        help_text="Counts, rejected rows, times and series, as `ingest` prints them."
    )

    class Meta(TraceItem.Meta):
        fields = [*TraceItem.Meta.fields, "options", "report"]


class UploadAnswer(serializers.Serializer[Any]):
    trace = TraceDetail()
    run = RunDetail(allow_null=True, help_text="Run that reads the file. Poll it.")
    known = serializers.BooleanField(
        help_text="true: this file with these options is already stored."
    )


class DemandQuery(serializers.Serializer[Any]):
    bin_s = FiniteField(
        min_value=1,
        max_value=7 * 86400,
        required=False,
        help_text="Bin width, s. Default: 900. A demand file keeps its own bins.",
    )


SeriesDemand = serializer_of(DemandColumns, "input_lengths", "output_lengths", "cached_tokens")


class Demand(serializers.Serializer[Any]):
    trace = serializers.CharField()
    clock = serializers.CharField(help_text="utc, or relative: the trace starts at epoch 0.")
    series = SeriesDemand(many=True)


BIN_S = 900.0  # default bin width, seconds
MAX_BINS = 50_000  # most bins of a series in one answer


class Upload(ApiView):
    """The upload of a file, under /ingest/ like the command and under /traces/."""

    parser_classes = [MultiPartParser]

    @operation(
        {
            202: OpenApiResponse(UploadAnswer, "Being read."),
            200: OpenApiResponse(UploadAnswer, "Known and ready."),
        },
        request={"multipart/form-data": UploadRequest}, parameters=[KEY, LOCATION],
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Upload a trace or demand file.

        The file is read in the background: poll the run in Location. If the same file was already
        read in the same way, the answer is 200 with the existing trace.
        """
        # Before the body is read, which may be large.
        check_may_plan(self.user, refusal="not upload")
        sent = validated(UploadRequest(data=request.data))
        file = sent.validated_data["file"]
        trace, run, new = trace_upload(
            owner=self.user,
            chunks=file.chunks(),
            file_name=file.name,
            options=sent.options(file.name),
            idempotency_key=idempotency_key(request),
        )
        answer = {"trace": trace, "run": run, "known": not new}
        body = UploadAnswer(answer, context={"request": request}).data
        if run is None:
            return Response(body)
        return run_response(run, request, body)


class IngestView(Upload):
    """The upload as the command ``ingest``."""


@lists(TraceItem, rows=lambda: traces_list().defer("report", "options"))
class TraceListView(Upload, ListView[Trace]):
    """List traces."""

    filter_backends = [StrictFilter, StrictOrdering]
    filterset_class = TraceFilter
    ordering_fields = ["created_at", "name", "requests", "bytes", "start_at"]
    content_negotiation_class = AcceptHeaderNegotiation


class TraceView(ApiView):
    @operation({200: TraceDetail})
    def get(self, request: Request, name: str) -> Response:
        """Get a trace with its import report.

        `name` is a name or an id.
        """
        return self.row_response(TraceDetail, trace_get(name))

    @removal
    def delete(self, request: Request, name: str) -> None:
        """Remove a trace.

        It is refused while a scenario uses the trace, or while the trace is being read.
        """
        trace_delete(trace=trace_get(name), user=self.user)


class TraceReadingView(ApiView):
    @operation({200: Preview})
    def get(self, request: Request, name: str) -> Response:
        """Get the first rows of a refused file, to choose its columns."""
        trace = trace_get(name)
        preview = trace_preview(trace)
        if preview is None:
            raise NotReady(f"Trace {trace.name} has no refused file to look at.")
        return Response(as_json(preview))

    @operation(
        {202: OpenApiResponse(RunDetail, "Being read; poll the run in Location.")},
        request=ReadingRequest, parameters=[KEY, LOCATION],
    )  # fmt: skip
    def post(self, request: Request, name: str) -> Response:
        """Read a refused file again with other options.

        The stored file is used. Send only the options, such as which column is which.
        """
        trace = trace_get(name)
        sent = validated(ReadingRequest(data=request.data))
        run = trace_reread(
            trace=trace,
            owner=self.user,
            options=sent.options(trace.file_name),
            idempotency_key=idempotency_key(request),
        )
        return run_response(run, request)


class TraceDemandView(ApiView):
    @operation({200: Demand}, parameters=[DemandQuery])
    def get(self, request: Request, name: str) -> Response:
        """Get the demand of a trace per bin, by model, region and tier."""
        sent = valid(DemandQuery(data=request.query_params))
        trace = ready_trace(name)
        bin_s = sent.get("bin_s")
        if bin_s and trace.kind == Trace.Kind.DEMAND:
            raise exceptions.ValidationError(
                {"bin_s": f"{trace.name} is a demand file and comes in its own bins. Leave it out."}
            )
        bin_s = bin_s or BIN_S
        span_s = (trace.report["end_ns"] - trace.report["start_ns"]) / 1e9
        if span_s / bin_s > MAX_BINS:
            raise exceptions.ValidationError(
                {"bin_s": f"{bin_s:g} s gives more than {MAX_BINS:,} bins. Take wider ones."}
            )
        demand = {
            "trace": trace.name,
            "clock": trace.report["clock"],
            "series": trace_demand(trace, bin_s),
        }
        return Response(Demand(demand).data)


class TraceCharacterView(ApiView):
    @operation({200: CharacterAnswer}, parameters=[CharacterQuery])
    def get(self, request: Request, name: str) -> Response:
        """Characterize a trace.

        The answer holds amounts and lengths by model, region and tier, rhythm, burstiness by time
        scale, imbalance and outages. It ranks every day, and with `start` and `end` that window.
        """
        query = valid(CharacterQuery(data=request.query_params))
        trace = ready_trace(name)
        window = as_json(trace_window(trace, query["start"], query["end"])) if query else None
        return Response(as_json(trace_character(trace)) | {"window": window})
