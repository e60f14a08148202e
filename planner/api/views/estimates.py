"""Estimate one deployment or many."""

from __future__ import annotations

import csv
import io
from typing import Any

from drf_spectacular.utils import OpenApiResponse
from rest_framework.parsers import BaseParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.examples import DEPLOYMENT
from planner.api.parsers import BoundedJsonParser
from planner.api.renderers import CsvRenderer
from planner.api.schema import CSV, JSON, operation
from planner.api.serializers.estimates import (
    EstimateAnswer,
    EstimateRequest,
    EstimateRows,
    QuickSizeAnswer,
    QuickSizeRequest,
    RowsRequest,
)
from planner.errors import IngestError
from planner.outputs.estimates import answer_table
from planner.services import estimates
from planner.services.quick_size import SizeQuestion, quick_size


class CsvRows(BaseParser):
    """A parser of CSV with one estimate per row; its result equals ``{"rows": [...]}``."""

    media_type = "text/csv"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        try:
            text = stream.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise IngestError(
                f"The body is not UTF-8 text (byte {error.start}). Save the file as UTF-8."
            ) from None
        try:
            rows = [
                {key: value for key, value in row.items() if key and value not in (None, "")}
                for row in csv.DictReader(io.StringIO(text))
            ]
        except csv.Error as error:
            raise IngestError(f"The body is not CSV: {error}.") from None
        return {"rows": rows}


class EstimateView(ApiView):
    @operation(
        {200: EstimateAnswer}, 400, 413, 415, 422,
        request=EstimateRequest, examples={"One instance": DEPLOYMENT},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Estimate one deployment.

        The answer holds TTFT, TBT, throughput, power, memory in steady state and the expected
        error. Your own measured rows adjust it, both those in the body and those stored. `own`
        holds the values before the adjustment.
        """
        query = dict(valid(EstimateRequest(data=request.data)))
        rows, kept = query.pop("measured", []), query.pop("kept")
        # A measured row inherits the fields that it does not give.
        measured = estimates.MeasurementSource([query | row for row in rows], use_stored=kept)
        return Response(estimates.estimate_one(query, measured))


class EstimateRowsView(ApiView):
    parser_classes = [BoundedJsonParser, CsvRows]
    renderer_classes = [JSONRenderer, CsvRenderer]

    @operation(
        {(200, JSON): OpenApiResponse(EstimateRows, "The answers."), (200, CSV): str},
        400, 413, 415, 422,
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
        return Response({"rows": answers})


class QuickSizeView(ApiView):
    @operation(
        {200: QuickSizeAnswer}, 400, 413, 415, 422, request=QuickSizeRequest,
        examples={"50 users": {"model": "llama-3.1-70b", "gpu": "p5.48xlarge", "users": 50}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Size a fleet without a trace: the fewest GPUs for users at once or a rate."""
        return Response(quick_size(SizeQuestion(**valid(QuickSizeRequest(data=request.data)))))
