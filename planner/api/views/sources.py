from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiResponse
from rest_framework import exceptions, status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.filters import ListView, lists
from planner.api.schema import operation, removal
from planner.api.serializers.sources import (
    PROMETHEUS,
    Reading,
    SamplesRequest,
    SamplesTaken,
    SeriesAsked,
    SourceAsked,
    SourceChange,
    SourceItem,
    SourceRequest,
    SourceSeries,
)
from planner.domain.serialise import as_json
from planner.inputs.live.samples import of_rows
from planner.models import Source, SourceReading
from planner.selectors.sources import readings_list, source_get, source_series, sources_list
from planner.services.source_reading import Preview, source_preview, source_request_reading
from planner.services.sources import samples_store, source_change, source_create, source_delete

MOST_BINS = 50_000  # most bins in one answer


@lists(SourceItem)
class SourceListView(ListView[Source]):
    """List live sources."""

    def get_queryset(self) -> QuerySet[Source]:
        return sources_list()

    @operation(
        {201: SourceItem}, 400, 403, 422,
        request=SourceRequest,
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
        source = source_create(owner=self.user, **sent)
        return Response(_source_json(source, request), status.HTTP_201_CREATED)


class SourcePreviewView(ApiView):
    @operation(
        {200: Preview}, 400, 403, 422,
        request=SourceAsked,
        examples={"A Prometheus": {"kind": "prometheus", "settings": PROMETHEUS}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Preview what a source would read; nothing is stored."""
        sent = valid(SourceAsked(data=request.data))
        preview = source_preview(user=self.user, kind=sent["kind"], fields=sent["settings"])
        return Response(as_json(preview))


class SourceView(ApiView):
    @operation({200: SourceItem}, 404)
    def get(self, request: Request, name: str) -> Response:
        """Get a live source."""
        return Response(_source_json(source_get(name), request))

    @operation(
        {200: SourceItem}, 400, 403, 404, 422,
        request=SourceChange, examples={"A pause": {"paused": True}},
    )  # fmt: skip
    def patch(self, request: Request, name: str) -> Response:
        """Change a source's settings or its interval, or pause it.

        Data read so far stays. `settings` replace all current settings.
        """
        sent = valid(SourceChange(data=request.data))
        source = source_change(source=source_get(name), user=self.user, changes=sent)
        return Response(_source_json(source, request))

    @removal
    def delete(self, request: Request, name: str) -> Response:
        """Remove a source with all its data.

        It is refused while a scenario names it.
        """
        source_delete(source=source_get(name), user=self.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class SourceReadView(ApiView):
    @operation(
        {200: OpenApiResponse(SourceItem, "Started. read_at and problem show when it is done.")},
        403, 404, 409,
        request=None,
    )  # fmt: skip
    def post(self, request: Request, name: str) -> Response:
        """Read a source now, even if it is not due."""
        source = source_request_reading(source=source_get(name), user=self.user)
        return Response(_source_json(source, request))


class SourceSamplesView(ApiView):
    @operation(
        {200: SamplesTaken}, 400, 403, 404, 409, 413, 422,
        request=SamplesRequest,
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
        taken = samples_store(
            source=source, user=self.user, sent=of_rows(sent["samples"], timezone.now())
        )
        return Response(SamplesTaken(taken).data)


@lists(Reading, 404)
class SourceReadingsView(ListView[SourceReading]):
    """List readings of a source, newest first: periods, files and errors."""

    def get_queryset(self) -> QuerySet[SourceReading]:
        if getattr(self, "swagger_fake_view", False):
            return SourceReading.objects.none()
        return readings_list(source_get(self.kwargs["name"]))


class SourceSeriesView(ApiView):
    @operation({200: SourceSeries}, 400, 404, parameters=[SeriesAsked])
    def get(self, request: Request, name: str) -> Response:
        """Get the data of a source per bin: amounts, gauges and histograms; null is a gap."""
        query = valid(SeriesAsked(data=request.query_params))
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


def _source_json(source: Source, request: Request) -> dict[str, Any]:
    """Return a source as JSON."""
    return dict(SourceItem(source, context={"request": request}).data)
