"""Profiles, the measurements they come from, and observations that tune them."""

from __future__ import annotations

from typing import Any

from rest_framework import generics, status
from rest_framework.parsers import MultiPartParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from planner.api import schema_hardware as schema
from planner.api.base import ApiView, idempotency_key
from planner.api.filters import Pages
from planner.api.renderers import CsvRenderer, table_rows
from planner.api.serializers.hardware import Search
from planner.api.serializers.profiles import (
    CalibrationDetail,
    CalibrationItem,
    CompareAsked,
    ComputeRequest,
    FitRequest,
    MeasurementsRequest,
    ObservationsRequest,
    ProfileDetail,
    ProfileItem,
    ResidualsAsked,
    VersionAsked,
    VersionItem,
    check_documents,
)
from planner.api.views.hardware import paged, valid
from planner.errors import NotAllowed, NotReady
from planner.models import Calibration, ProfileVersion
from planner.selectors import profiles as known
from planner.selectors.calibrations import calibration_get, calibration_table, calibrations_list
from planner.services import calibrations
from planner.services.fits import profile_compare, profile_compute, profile_fit
from planner.services.profiles import profile_delete
from planner.services.tuning import profile_tune

PREVIEW_ROWS = 20
JSON_ROWS = 1000


class ProfileListView(ApiView):
    @schema.profile_list
    def get(self, request: Request) -> Response:
        asked = valid(Search(data=request.query_params))
        rows = known.profiles_list(asked.get("search", ""))
        return paged(self, rows, ProfileItem, {"request": request})

    @schema.profile_post
    def post(self, request: Request) -> Response:
        given = ComputeRequest(data=request.data)
        given.is_valid(raise_exception=True)
        key = idempotency_key(request)
        version = profile_compute(user=self.user, wanted=given.wanted(), idempotency_key=key)
        return _made(version, request)


class ProfileView(ApiView):
    @schema.profile_get
    def get(self, request: Request, name: str) -> Response:
        asked = valid(VersionAsked(data=request.query_params))
        one = known.profile_get(name, asked.get("version"))
        return Response(ProfileDetail(one, context={"request": request}).data)

    @schema.profile_delete
    def delete(self, request: Request, name: str) -> Response:
        one = known.profile_get(name)
        if one.row is None:
            raise NotReady(f"{name} is built in and stays.")
        profile_delete(profile=one.row.profile, user=self.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class ProfileVersionsView(ApiView):
    @schema.profile_versions
    def get(self, request: Request, name: str) -> Response:
        known.profile_get(name)
        return paged(self, known.profile_versions(name), VersionItem, {"request": request})


class ProfileChecksView(ApiView):
    @schema.profile_checks
    def get(self, request: Request, name: str) -> Response:
        asked = valid(VersionAsked(data=request.query_params))
        one = known.profile_get(name, asked.get("version"))
        checks = check_documents(one.checks)
        return Response({"profile": one.name, "version": one.version, "checks": checks})


class ProfileResidualsView(ApiView):
    renderer_classes = [JSONRenderer, CsvRenderer]

    @schema.profile_residuals
    def get(self, request: Request, name: str) -> Response:
        asked = valid(ResidualsAsked(data=request.query_params))
        one = known.profile_get(name, asked.get("version"))
        table = known.profile_residuals(one)
        part = table.slice(asked["offset"], asked.get("limit"))
        if request.accepted_renderer.format == "csv":
            return Response(part)
        rows = table_rows(part.head(asked.get("limit") or JSON_ROWS))
        total = table.height
        return Response({"profile": one.name, "version": one.version, "total": total, "rows": rows})


class CalibrationListView(ApiView, generics.ListAPIView[Calibration]):
    parser_classes = [MultiPartParser]
    serializer_class = CalibrationItem
    pagination_class = Pages
    filter_backends: list[Any] = []

    def get_queryset(self) -> Any:
        return calibrations_list()

    @schema.calibration_list
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.list(request, *args, **kwargs)

    @schema.calibration_post
    def post(self, request: Request) -> Response:
        if not self.user.may_plan:  # before the body is read, which may be large
            raise NotAllowed("Your role may not upload; ask an admin for the planner role.")
        given = MeasurementsRequest(data=request.data)
        given.is_valid(raise_exception=True)
        file = given.validated_data["file"]
        kept = calibrations.calibration_upload(
            user=self.user,
            chunks=file.chunks(),
            file_name=file.name,
            reading=given.reading(),
            source=given.validated_data.get("source", ""),
            idempotency_key=idempotency_key(request),
        )
        body = _calibration(kept, request)
        headers = {"Location": body["links"]["self"]}
        return Response(body, status.HTTP_201_CREATED, headers=headers)


class CalibrationView(ApiView):
    @schema.calibration_get
    def get(self, request: Request, number: int) -> Response:
        return Response(_calibration(calibration_get(number), request))

    @schema.calibration_delete
    def delete(self, request: Request, number: int) -> Response:
        calibrations.calibration_delete(calibration=calibration_get(number), user=self.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class CalibrationFitsView(ApiView):
    @schema.calibration_fit
    def post(self, request: Request, number: int) -> Response:
        given = FitRequest(data=request.data)
        given.is_valid(raise_exception=True)
        version = profile_fit(
            user=self.user,
            calibration=calibration_get(number),
            wanted=given.wanted(),
            idempotency_key=idempotency_key(request),
        )
        return _made(version, request)


class CalibrationComparisonsView(ApiView):
    @schema.calibration_compare
    def post(self, request: Request, number: int) -> Response:
        asked = valid(CompareAsked(data=request.data))
        compared, table = profile_compare(
            profile_name=asked["profile"],
            version=asked.get("version"),
            calibration=calibration_get(number),
            rows_model=asked["rows_model"],
            rows_gpu=asked["rows_gpu"],
        )
        checks = check_documents(compared.checks)
        rows = table_rows(table.head(JSON_ROWS))
        return Response({"profile": asked["profile"], "checks": checks, "residuals": rows})


class ObservationsView(ApiView):
    @schema.observations
    def post(self, request: Request) -> Response:
        asked = valid(ObservationsRequest(data=request.data))
        version = profile_tune(
            user=self.user,
            name=asked["profile"],
            observations=asked["observations"],
            keep_as=asked["keep_as"],
            source=asked["source"],
            idempotency_key=idempotency_key(request),
        )
        return _made(version, request)


def _made(version: ProfileVersion, request: Request) -> Response:
    name = version.profile.name
    one = known.profile_get(name, version.version)
    body = ProfileDetail(one, context={"request": request}).data
    url = reverse("api:profile", kwargs={"name": name}, request=request)
    headers = {"Location": f"{url}?version={version.version}"}
    return Response(body, status.HTTP_201_CREATED, headers=headers)


def _calibration(row: Calibration, request: Request) -> dict[str, Any]:
    preview = table_rows(calibration_table(row).head(PREVIEW_ROWS))
    body = CalibrationDetail(row, context={"request": request, "preview": preview}).data
    return dict(body)
