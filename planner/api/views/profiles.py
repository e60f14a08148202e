"""Serve profiles, the measurements behind them, and observations that tune them."""

from collections.abc import Callable
from typing import Any

from rest_framework import status
from rest_framework.parsers import MultiPartParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from planner.api.base import ApiView, checked, idempotency_key, valid
from planner.api.examples import COMPARED, COMPUTED, FIT, OBSERVED
from planner.api.filters import ListView, NumberPagination, lists, paged
from planner.api.renderers import CsvRenderer, table_rows
from planner.api.schema import CSV, JSON, KEY, LOCATION, F, operation, removal
from planner.api.serializers.hardware import Search
from planner.api.serializers.profiles import (
    CalibrationDetail,
    CalibrationItem,
    Checks,
    CompareAsked,
    Compared,
    ComputeRequest,
    FitRequest,
    MeasurementsRequest,
    ObservationsRequest,
    ProfileDetail,
    ProfileItem,
    Residuals,
    ResidualsAsked,
    VersionAsked,
    VersionItem,
    checks_json,
)
from planner.api.serializers.strict_fields import Values
from planner.errors import NotReady
from planner.models import Calibration, ProfileVersion
from planner.selectors import profiles as known
from planner.selectors.calibrations import calibration_get, calibration_table, calibrations_list
from planner.services import calibrations
from planner.services.access import check_may_plan
from planner.services.profile_fits import (
    profile_compare,
    profile_compute,
    profile_fit,
    profile_tune,
)
from planner.services.profiles import profile_delete

PREVIEW_ROWS = 20
JSON_ROWS = 1000


def new_version(request: Any, example: Values) -> Callable[[F], F]:
    """Describe an operation that creates a version of a profile.

    The operation is safe to repeat with a key.
    """
    return operation(
        {201: ProfileDetail}, 400, 403, 404, 409, 413, 415, 422,
        request=request, parameters=[KEY, LOCATION], examples={"For instance": example},
    )  # fmt: skip


class ProfileListView(ApiView):
    pagination_class = NumberPagination

    @operation(
        {200: ProfileItem(many=True)}, 400, 404,
        operation_id="profiles_profiles_list", parameters=[Search],
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """List profiles: built-in ones and your own."""
        query = valid(Search(data=request.query_params))
        rows = known.profiles_list(query.get("search", ""))
        return paged(self, rows, ProfileItem, {"request": request})

    @new_version(ComputeRequest, COMPUTED)
    def post(self, request: Request) -> Response:
        """Create an operator or roofline profile."""
        sent = checked(ComputeRequest(data=request.data))
        key = idempotency_key(request)
        version = profile_compute(user=self.user, spec=sent.spec(), idempotency_key=key)
        return _created(self, version)


class ProfileView(ApiView):
    @operation({200: ProfileDetail}, 400, 404, parameters=[VersionAsked])
    def get(self, request: Request, name: str) -> Response:
        """Get a profile in its newest version, or in the version of the request."""
        query = valid(VersionAsked(data=request.query_params))
        profile = known.profile_get(name, query.get("version"))
        return self.shown(ProfileDetail, profile)

    @removal
    def delete(self, request: Request, name: str) -> None:
        """Remove a profile with all its versions.

        It is refused while a scenario or an unfinished run uses it.
        """
        profile = known.profile_get(name)
        if profile.row is None:
            raise NotReady(f"{name} is built in and stays.")
        profile_delete(profile=profile.row.profile, user=self.user)


class ProfileVersionsView(ApiView):
    pagination_class = NumberPagination

    @operation({200: VersionItem(many=True)}, 400, 404, operation_id="profiles_versions_list")
    def get(self, request: Request, name: str) -> Response:
        """List the versions of a profile, newest first."""
        known.profile_get(name)
        return paged(self, known.profile_versions(name), VersionItem, {"request": request})


class ProfileChecksView(ApiView):
    @operation({200: Checks}, 400, 404, parameters=[VersionAsked])
    def get(self, request: Request, name: str) -> Response:
        """Get the checks of a profile and its errors."""
        query = valid(VersionAsked(data=request.query_params))
        profile = known.profile_get(name, query.get("version"))
        checks = checks_json(profile.checks)
        return Response({"profile": profile.name, "version": profile.version, "checks": checks})


class ProfileResidualsView(ApiView):
    renderer_classes = [JSONRenderer, CsvRenderer]

    @operation({(200, JSON): Residuals, (200, CSV): str}, 400, 404, parameters=[ResidualsAsked])
    def get(self, request: Request, name: str) -> Response:
        """List measured and predicted values, row by row.

        `Accept: text/csv` or `?format=csv` gives CSV. The list is empty for built-in profiles.
        """
        query = valid(ResidualsAsked(data=request.query_params))
        profile = known.profile_get(name, query.get("version"))
        table = known.profile_residuals(profile)
        part = table.slice(query["offset"], query.get("limit"))
        if request.accepted_renderer.format == "csv":
            return Response(part)
        rows = table_rows(part.head(query.get("limit") or JSON_ROWS))
        total = table.height
        return Response(
            {"profile": profile.name, "version": profile.version, "total": total, "rows": rows}
        )


@lists(CalibrationItem, rows=calibrations_list)
class CalibrationListView(ListView[Calibration]):
    """List uploaded measurements."""

    parser_classes = [MultiPartParser]

    @operation(
        {201: CalibrationDetail}, 400, 403, 413, 415, 422,
        request={"multipart/form-data": MeasurementsRequest}, parameters=[KEY, LOCATION],
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Upload measurements.

        The file is JSON of vLLM's benchmark or of GuideLLM, a CSV of rows, or measured kernels.
        """
        check_may_plan(self.user, "not upload")  # check before reading the body, which may be large
        sent = checked(MeasurementsRequest(data=request.data))
        file = sent.validated_data["file"]
        calibration = calibrations.calibration_upload(
            user=self.user,
            chunks=file.chunks(),
            file_name=file.name,
            options=sent.reading_options(),
            source=sent.validated_data.get("source", ""),
            idempotency_key=idempotency_key(request),
        )
        return _calibration_response(self, calibration, status.HTTP_201_CREATED)


class CalibrationView(ApiView):
    @operation({200: CalibrationDetail}, 400, 404)
    def get(self, request: Request, number: int) -> Response:
        """Get uploaded measurements with their first rows."""
        return _calibration_response(self, calibration_get(number))

    @removal
    def delete(self, request: Request, number: int) -> None:
        """Remove uploaded measurements.

        Profiles that were fitted to them stay.
        """
        calibrations.calibration_delete(calibration=calibration_get(number), user=self.user)


class CalibrationFitsView(ApiView):
    @new_version(FitRequest, FIT)
    def post(self, request: Request, number: int) -> Response:
        """Fit a profile to uploaded measurements."""
        sent = checked(FitRequest(data=request.data))
        version = profile_fit(
            user=self.user,
            calibration=calibration_get(number),
            spec=sent.spec(),
            idempotency_key=idempotency_key(request),
        )
        return _created(self, version)


class CalibrationComparisonsView(ApiView):
    @operation(
        {200: Compared}, 400, 404, 413, 415, 422,
        request=CompareAsked, examples={"For instance": COMPARED},
    )  # fmt: skip
    def post(self, request: Request, number: int) -> Response:
        """Compare a profile with uploaded measurements.

        It changes nothing.
        """
        query = valid(CompareAsked(data=request.data))
        compared, table = profile_compare(
            profile_name=query["profile"],
            version=query.get("version"),
            calibration=calibration_get(number),
            rows_model=query["rows_model"],
            rows_gpu=query["rows_gpu"],
        )
        checks = checks_json(compared.checks)
        rows = table_rows(table.head(JSON_ROWS))
        return Response({"profile": query["profile"], "checks": checks, "residuals": rows})


class ObservationsView(ApiView):
    @new_version(ObservationsRequest, OBSERVED)
    def post(self, request: Request) -> Response:
        """Tune a profile with observations of a running service.

        An extended Kalman filter adjusts the parameters of a linear profile. The result is its next
        version.
        """
        query = valid(ObservationsRequest(data=request.data))
        version = profile_tune(
            user=self.user,
            name=query["profile"],
            observations=query["observations"],
            keep_as=query["keep_as"],
            source=query["source"],
            idempotency_key=idempotency_key(request),
        )
        return _created(self, version)


def _created(view: ApiView, version: ProfileVersion) -> Response:
    """Return 201 with the new version of a profile."""
    name = version.profile.name
    url = reverse("api:profile", kwargs={"name": name}, request=view.request)
    profile = known.profile_get(name, version.version)
    headers = {"Location": f"{url}?version={version.version}"}
    return view.shown(ProfileDetail, profile, status.HTTP_201_CREATED, headers)


def _calibration_response(
    view: ApiView, row: Calibration, code: int = status.HTTP_200_OK
) -> Response:
    """Return uploaded measurements with their first rows."""
    preview = table_rows(calibration_table(row).head(PREVIEW_ROWS))
    return view.shown(CalibrationDetail, row, code, preview=preview)
