"""Estimate one deployment or many."""

from typing import Any

from drf_spectacular.utils import OpenApiResponse
from rest_framework import serializers
from rest_framework.parsers import BaseParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.parsers import BoundedJsonParser
from planner.api.renderers import CsvRenderer
from planner.api.schema import CSV, DEPLOYMENT, JSON, operation
from planner.api.serializers.fields import StrictSerializer, Values
from planner.api.serializers.options import OptionsSerializer
from planner.domain.estimate_answer import EstimateAnswer
from planner.domain.estimate_options import ESTIMATE
from planner.domain.options import options_in, options_of
from planner.domain.serialise import as_json
from planner.errors import IngestError
from planner.files.documents import csv_rows, utf8_text
from planner.inputs.estimates.measured_corrections import MOST_ROWS
from planner.outputs.estimates import answer_table
from planner.services import estimates
from planner.services.quick_size import QuickSize, SizeQuestion, quick_size

MAX_ROWS = 20_000


class WithMeasurements(OptionsSerializer):
    measured = serializers.ListField(
        child=serializers.DictField(),
        required=False,
        max_length=MOST_ROWS,
        help_text="Your measured rows, with the fields of a body of /estimates/, ttft_ms and "
        "tbt_ms. Missing fields come from this body. They correct speeds and errors.",
    )
    kept = serializers.BooleanField(
        required=False, default=True, help_text="Also use stored measurements."
    )


class EstimateRequest(WithMeasurements):
    """One deployment with its requests in flight, as in `bin/manage estimate`."""

    declared = ESTIMATE

    def validate(self, attrs: Values) -> Values:
        """Check that exactly one of ``rate`` and ``concurrency`` is given."""
        if ("rate" in attrs) == ("concurrency" in attrs):
            raise serializers.ValidationError(
                {"concurrency": ["Give the requests in flight, or rate instead, not both."]}
            )
        return attrs


class QuickSizeRequest(OptionsSerializer):
    """A question without a trace, as in `bin/manage quick-size`."""

    declared = options_in(SizeQuestion)


class RowsRequest(StrictSerializer):
    """Many deployments; a row that cannot be estimated does not stop the others."""

    rows = serializers.ListField(
        child=serializers.DictField(), min_length=1, max_length=MAX_ROWS,
        help_text="Requests, each as the body of /estimates/.",
    )  # fmt: skip


class EstimateRows(serializers.Serializer[Any]):
    rows = serializers.ListField(
        child=serializers.DictField(),
        help_text="Answers in the order of the requests, or {refused: reason}.",
    )


class CsvRows(BaseParser):
    """A parser of CSV with one deployment per row, as if JSON ``{"rows": [...]}`` had been sent."""

    media_type = "text/csv"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        """Return {"rows": [cells by column, without empty ones]}; raise IngestError for a fault."""
        text = utf8_text(stream.read(), "The body", "Save the file as UTF-8.", IngestError)
        numbered_lines = csv_rows(text, "The body", IngestError)
        _, columns = next(numbered_lines, (1, []))
        rows = []
        for _, cells in numbered_lines:
            if cells:
                named_cells = zip(columns, cells, strict=False)
                rows.append({column: cell for column, cell in named_cells if column and cell})
        return {"rows": rows}


class EstimateView(ApiView):
    @operation(
        {200: EstimateAnswer}, request=EstimateRequest, examples={"One instance": DEPLOYMENT},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Estimate one deployment.

        The answer holds TTFT, TBT, throughput, power, memory in steady state and the expected
        error. Your own measured rows adjust it, both those in the body and those stored. `own`
        holds the values before the adjustment.
        """
        query = dict(valid(EstimateRequest(data=request.data)))
        rows, use_stored = query.pop("measured", []), query.pop("kept")
        # A measured row inherits the fields that it does not give.
        measured = estimates.MeasurementSource([query | row for row in rows], use_stored=use_stored)
        return Response(as_json(estimates.estimate_one(query, measured)))


class EstimateRowsView(ApiView):
    parser_classes = [BoundedJsonParser, CsvRows]
    renderer_classes = [JSONRenderer, CsvRenderer]

    @operation(
        {(200, JSON): OpenApiResponse(EstimateRows, "The answers."), (200, CSV): str},
        request={JSON: RowsRequest, CSV: str},
        examples={"Two": {"rows": [DEPLOYMENT, DEPLOYMENT | {"concurrency": 64}]}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Estimate many deployments.

        The body is JSON or CSV. The answer is JSON or, with `Accept: text/csv`, CSV, in the same
        order.
        """
        rows = valid(RowsRequest(data=request.data))["rows"]
        answers = estimates.estimate_many(rows)
        if request.accepted_renderer.format == "csv":
            headers = {"Content-Disposition": 'attachment; filename="estimates.csv"'}
            return Response(answer_table(answers), headers=headers)
        return Response({"rows": as_json(answers)})


class QuickSizeView(ApiView):
    @operation(
        {200: QuickSize}, request=QuickSizeRequest,
        examples={"50 users": {"model": "llama-3.1-70b", "gpu": "p5.48xlarge", "users": 50}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Size a fleet without a trace: the fewest GPUs for users at once or a rate."""
        question = options_of(SizeQuestion, valid(QuickSizeRequest(data=request.data)))
        return Response(as_json(quick_size(question)))
