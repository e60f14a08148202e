"""Serve profiles, the measurements behind them, and observations that tune them."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers, status
from rest_framework.parsers import MultiPartParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from planner.api import schema
from planner.api.base import ApiView, idempotency_key, valid, validated
from planner.api.filters import ListView, NumberPagination, lists, page_response
from planner.api.renderers import CsvRenderer, table_rows
from planner.api.schema import CSV, JSON, KEY, LOCATION, F, operation, removal
from planner.api.serializers.fields import (
    FiniteField,
    LinkField,
    OptionalText,
    RelatedText,
    StrictSerializer,
    TypedField,
    Values,
)
from planner.api.serializers.options import BytesField, OptionsSerializer
from planner.api.views.hardware import Search
from planner.domain.options import options_in
from planner.errors import NotReady
from planner.inputs.profiles.spec import COMPUTED, KINDS, ProfileSpec
from planner.inputs.profiles.tuning import MAX_OBSERVATIONS
from planner.models import Calibration, ProfileVersion
from planner.selectors import profiles as known
from planner.selectors.evidence import Evidence, evidence_of
from planner.selectors.measured_corrections import (
    calibration_get,
    calibration_table,
    calibrations_list,
)
from planner.services import calibrations, profile_fits
from planner.services.access import check_may_plan
from planner.services.calibrations import CalibrationOptions
from planner.services.profiles import profile_delete
from simulation.performance.fitting.compare import PhaseBasis
from simulation.performance.profile import Check
from simulation.performance.specs import BYTES, Provenance

PRECISIONS = tuple(BYTES)


class LimitsField(serializers.Serializer[Any]):
    max_batch = serializers.IntegerField(help_text="Largest decode batch, sequences.")
    max_batch_tokens = serializers.IntegerField(help_text="Most prefill tokens per iteration.")
    kv_capacity_tokens = serializers.IntegerField()


class ProfileLinks(serializers.Serializer[Any]):
    self = LinkField("profile", "name", "name")
    versions = LinkField("profile-versions", "name", "name")
    checks = LinkField("profile-checks", "name", "name")
    residuals = LinkField("profile-residuals", "name", "name")
    calibration = LinkField("calibration", "number", "calibration.pk", allow_null=True)


class ProfileItem(serializers.Serializer[Any]):
    """A profile as lists show it; ``version`` is null for a built-in profile."""

    name = serializers.CharField()
    version = serializers.IntegerField(allow_null=True)
    versions = serializers.IntegerField(help_text="Number of versions. 0: built in.")
    own = serializers.BooleanField(help_text="true: fitted or imported; false: built in.")
    kind = serializers.CharField(help_text="linear, table, operator or roofline")
    model = serializers.CharField()
    gpu = serializers.CharField()
    tp = serializers.IntegerField(help_text="GPUs per replica.")
    telling = TypedField(
        Check | None, source="stated_check", help_text="Check that decides on this profile."
    )
    provenance = TypedField(Provenance, source="profile.provenance")
    links = ProfileLinks(source="*", read_only=True)


class ProfileDetail(ProfileItem):
    """One version of a profile."""

    limits = LimitsField(source="profile")
    parameters = serializers.DictField(
        help_text="By name: value, 95% interval (low, high) and unit. A table has none."
    )
    checks = TypedField(list[Check])
    phases = TypedField(list[PhaseBasis])
    notes = TypedField(list[str], lambda profile: profile.report.get("notes", []))
    range = TypedField(
        str, lambda profile: profile.report.get("range", ""), help_text="Measured range, as text."
    )
    created_at = serializers.DateTimeField(allow_null=True)
    created_by = RelatedText("row.created_by.username", read_only=True)


class VersionItem(serializers.ModelSerializer[ProfileVersion]):
    checks = TypedField(list[Check])
    created_by = RelatedText("created_by.username")
    calibration = serializers.IntegerField(source="calibration_id", allow_null=True)

    class Meta:
        model = ProfileVersion
        fields = ["version", "kind", "limits", "parameters", "checks", "provenance", "source",
                  "calibration", "created_by", "created_at"]  # fmt: skip


class VersionQuery(StrictSerializer):
    version = serializers.IntegerField(
        min_value=1, max_value=10**9, required=False, help_text="Default: the newest."
    )


class ResidualsQuery(VersionQuery):
    offset = serializers.IntegerField(min_value=0, default=0)
    limit = serializers.IntegerField(min_value=1, max_value=100_000, required=False)


class ResidualRow(serializers.Serializer[Any]):
    quantity = serializers.CharField()
    unit = serializers.CharField()
    label = serializers.CharField(help_text="Row of the file.")  # type: ignore[assignment]
    measured = serializers.FloatField()
    predicted = serializers.FloatField()
    error = serializers.FloatField(help_text="Signed error, as a fraction.")
    inside = serializers.BooleanField(help_text="true: within the measured range.")
    outlier = serializers.BooleanField()


class Residuals(serializers.Serializer[Any]):
    profile = serializers.CharField()
    version = serializers.IntegerField(allow_null=True)
    total = serializers.IntegerField()
    rows = ResidualRow(many=True)


class Checks(serializers.Serializer[Any]):
    profile = serializers.CharField()
    version = serializers.IntegerField(allow_null=True)
    checks = TypedField(list[Check])


class ArrangementRows(serializers.Serializer[Any]):
    model = serializers.CharField(help_text="Model name in the file. Empty: unknown.")
    gpu = serializers.CharField()
    precision = serializers.CharField()
    tp = serializers.IntegerField(allow_null=True)
    rows = serializers.IntegerField()


class CalibrationLinks(serializers.Serializer[Any]):
    self = LinkField("calibration", "number")
    fits = LinkField("calibration-fits", "number")
    comparisons = LinkField("calibration-comparisons", "number")


class CalibrationItem(serializers.ModelSerializer[Calibration]):
    owner = RelatedText("owner.username")
    arrangements = ArrangementRows(
        source="report.arrangements", many=True, read_only=True, default=list
    )
    links = CalibrationLinks(source="*", read_only=True)

    class Meta:
        model = Calibration
        fields = ["id", "name", "kind", "format", "file_name", "bytes", "rows", "source",
                  "arrangements", "owner", "created_at", "links"]  # fmt: skip


class CalibrationDetail(CalibrationItem):
    columns = TypedField(list[str], lambda row: row.report.get("columns", []))
    notes = TypedField(list[str], lambda row: row.report.get("notes", []))
    preview = serializers.SerializerMethodField()
    evidence = TypedField(
        Evidence | None,
        lambda row: evidence_of(row) if row.kind == Calibration.Kind.BENCHMARK else None,
    )

    class Meta(CalibrationItem.Meta):
        fields = [*CalibrationItem.Meta.fields, "columns", "notes", "preview", "evidence"]

    @extend_schema_field({"type": "array", "items": {"type": "object"}})
    def get_preview(self, row: Calibration) -> list[Values]:
        return list(self.context["preview"])


class MeasurementsRequest(OptionsSerializer):
    """A file of measurements, and the attributes that the file does not state."""

    declared = options_in(CalibrationOptions)
    file = BytesField(
        max_length=255,
        help_text="JSON of vLLM's benchmark or GuideLLM, or CSV; also .gz and .zst.",
        error_messages={"empty": "The file is empty. Export it again."},
    )
    source = serializers.CharField(  # type: ignore[assignment]
        max_length=500, required=False, help_text="Source of the measurement."
    )

    def reading_options(self) -> CalibrationOptions:
        """Return the options for reading the file: the body without file and source."""
        values: Values = self.validated_data
        return CalibrationOptions(
            **{name: values[name] for name in CalibrationOptions.model_fields if name in values}
        )


class ComputeRequest(StrictSerializer):
    """A profile without benchmark rows; other limits follow from defaults and memory."""

    name = serializers.CharField(
        max_length=80, help_text="Name. An existing name gets a new version."
    )
    kind = serializers.ChoiceField(COMPUTED)
    model = serializers.CharField(max_length=80)
    gpu = serializers.CharField(max_length=80)
    kernels = serializers.ListField(
        child=serializers.IntegerField(min_value=1),
        default=list,
        max_length=50,
        help_text="Calibrations with the measured kernels of an operator profile.",
    )
    tp = serializers.IntegerField(min_value=1, max_value=1024, default=1)
    pp = serializers.IntegerField(min_value=1, max_value=64, default=1)
    attention_dp = serializers.IntegerField(min_value=1, max_value=1024, default=1)
    moe_tp = serializers.IntegerField(min_value=1, max_value=1024, default=1)
    moe_ep = serializers.IntegerField(min_value=1, max_value=1024, default=1)
    precision = serializers.ChoiceField(PRECISIONS, default="bf16")
    kv_precision = serializers.ChoiceField(("bf16", "fp8"), default="bf16")
    max_batch = serializers.IntegerField(min_value=1, max_value=65_536, required=False)
    max_batch_tokens = serializers.IntegerField(min_value=1, max_value=10**7, required=False)
    kv_capacity_tokens = serializers.IntegerField(min_value=1, max_value=10**9, required=False)

    def spec(self) -> ProfileSpec:
        """Return the profile to compute or fit."""
        values = dict(self.validated_data)
        return ProfileSpec(**(values | {"kernels": tuple(values["kernels"])}))


class FitRequest(ComputeRequest):
    """The rows to fit and the kind of profile.

    Limits that are not given follow from the rows, defaults and memory. Operator and roofline
    profiles are scaled to the rows, with separate factors for prefill and decode.
    """

    kind = serializers.ChoiceField(KINDS)
    rows_model = OptionalText(max_length=200, help_text="Model name in the file.")
    rows_gpu = OptionalText(max_length=200)


class ComparisonRequest(VersionQuery):
    profile = serializers.CharField(max_length=200)
    rows_model = OptionalText(max_length=200)
    rows_gpu = OptionalText(max_length=200)


class Compared(serializers.Serializer[Any]):
    profile = serializers.CharField()
    checks = TypedField(list[Check])
    residuals = ResidualRow(many=True)


class Observation(StrictSerializer):
    """The mean time of equal iterations."""

    at_s = FiniteField(min_value=0, help_text="Time of the iteration, s.")
    decodes = FiniteField(min_value=0, max_value=1e6, help_text="Decode batch size.")
    prefill_tokens = FiniteField(
        min_value=0, max_value=1e8, help_text="Prefill tokens per iteration."
    )
    seconds = FiniteField(min_value=0, max_value=1e5, help_text="Mean iteration time, s.")


class ObservationsRequest(StrictSerializer):
    """Observations of a running service, which tune a linear profile into its next version."""

    profile = serializers.CharField(max_length=200)
    keep_as = serializers.CharField(
        max_length=80,
        required=False,
        default="",
        help_text="Name of the copy. Required for a built-in profile.",
    )
    source = serializers.CharField(max_length=400, required=False, default="")  # type: ignore[assignment]
    observations = serializers.ListField(
        child=Observation(), min_length=1, max_length=MAX_OBSERVATIONS
    )


PREVIEW_ROWS = 20
JSON_ROWS = 1000


def new_version(request: Any, example: Values) -> Callable[[F], F]:
    """Return a decorator for an operation that creates a version of a profile.

    ``request`` is the serializer of its body, ``example`` such a body. The operation accepts an
    idempotency key.
    """
    examples = {"For instance": example}
    return operation(
        {201: ProfileDetail}, request=request, parameters=[KEY, LOCATION], examples=examples
    )


class ProfileListView(ApiView):
    pagination_class = NumberPagination

    @operation(
        {200: ProfileItem(many=True)}, operation_id="profiles_profiles_list", parameters=[Search],
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """List profiles: built-in ones and your own."""
        query = valid(Search(data=request.query_params))
        rows = known.profiles_list(query.get("search", ""))
        return page_response(self, rows, ProfileItem, {"request": request})

    @new_version(ComputeRequest, schema.COMPUTED)
    def post(self, request: Request) -> Response:
        """Create an operator or roofline profile."""
        sent = validated(ComputeRequest(data=request.data))
        key = idempotency_key(request)
        version = profile_fits.profile_compute(
            user=self.user, spec=sent.spec(), idempotency_key=key
        )
        return _created_response(self, version)


class ProfileView(ApiView):
    @operation({200: ProfileDetail}, parameters=[VersionQuery])
    def get(self, request: Request, name: str) -> Response:
        """Get a profile in its newest version, or in the version of the request."""
        query = valid(VersionQuery(data=request.query_params))
        profile = known.profile_get(name, query.get("version"))
        return self.row_response(ProfileDetail, profile)

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

    @operation({200: VersionItem(many=True)}, operation_id="profiles_versions_list")
    def get(self, request: Request, name: str) -> Response:
        """List the versions of a profile, newest first."""
        known.profile_get(name)
        return page_response(self, known.profile_versions(name), VersionItem, {"request": request})


class ProfileChecksView(ApiView):
    @operation({200: Checks}, parameters=[VersionQuery])
    def get(self, request: Request, name: str) -> Response:
        """Get the checks of a profile and its errors."""
        query = valid(VersionQuery(data=request.query_params))
        profile = known.profile_get(name, query.get("version"))
        checks = [asdict(check) for check in profile.checks]
        return Response({"profile": profile.name, "version": profile.version, "checks": checks})


class ProfileResidualsView(ApiView):
    renderer_classes = [JSONRenderer, CsvRenderer]

    @operation({(200, JSON): Residuals, (200, CSV): str}, parameters=[ResidualsQuery])
    def get(self, request: Request, name: str) -> Response:
        """List measured and predicted values, row by row.

        `Accept: text/csv` or `?format=csv` gives CSV. The list is empty for built-in profiles.
        """
        query = valid(ResidualsQuery(data=request.query_params))
        profile = known.profile_get(name, query.get("version"))
        table = known.profile_residuals(profile)
        page = table.slice(query["offset"], query.get("limit"))
        if request.accepted_renderer.format == "csv":
            return Response(page)
        rows = table_rows(page.head(query.get("limit") or JSON_ROWS))
        total = table.height
        return Response(
            {"profile": profile.name, "version": profile.version, "total": total, "rows": rows}
        )


@lists(CalibrationItem, rows=calibrations_list)
class CalibrationListView(ListView[Calibration]):
    """List uploaded measurements."""

    parser_classes = [MultiPartParser]

    @operation(
        {201: CalibrationDetail},
        request={"multipart/form-data": MeasurementsRequest}, parameters=[KEY, LOCATION],
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Upload measurements.

        The file is JSON of vLLM's benchmark or of GuideLLM, a CSV of rows, or measured kernels.
        """
        # Before the body is read, which may be large.
        check_may_plan(self.user, refusal="not upload")
        sent = validated(MeasurementsRequest(data=request.data))
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
    @operation({200: CalibrationDetail})
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
    @new_version(FitRequest, schema.FIT)
    def post(self, request: Request, number: int) -> Response:
        """Fit a profile to uploaded measurements."""
        sent = validated(FitRequest(data=request.data))
        version = profile_fits.profile_fit(
            user=self.user,
            calibration=calibration_get(number),
            spec=sent.spec(),
            idempotency_key=idempotency_key(request),
        )
        return _created_response(self, version)


class CalibrationComparisonsView(ApiView):
    @operation(
        {200: Compared}, request=ComparisonRequest, examples={"For instance": schema.COMPARED}
    )
    def post(self, request: Request, number: int) -> Response:
        """Compare a profile with uploaded measurements.

        It changes nothing.
        """
        query = valid(ComparisonRequest(data=request.data))
        compared, table = profile_fits.profile_compare(
            profile_name=query["profile"],
            version=query.get("version"),
            calibration=calibration_get(number),
            rows_model=query["rows_model"],
            rows_gpu=query["rows_gpu"],
        )
        checks = [asdict(check) for check in compared]
        rows = table_rows(table.head(JSON_ROWS))
        return Response({"profile": query["profile"], "checks": checks, "residuals": rows})


class ObservationsView(ApiView):
    @new_version(ObservationsRequest, schema.OBSERVED)
    def post(self, request: Request) -> Response:
        """Tune a profile with observations of a running service.

        An extended Kalman filter adjusts the parameters of a linear profile. The result is its next
        version.
        """
        query = valid(ObservationsRequest(data=request.data))
        version = profile_fits.profile_tune(
            user=self.user,
            name=query["profile"],
            observations=query["observations"],
            keep_as=query["keep_as"],
            source=query["source"],
            idempotency_key=idempotency_key(request),
        )
        return _created_response(self, version)


def _created_response(view: ApiView, version: ProfileVersion) -> Response:
    """Return the response 201 with the new version of a profile."""
    name = version.profile.name
    url = reverse("api:profile", kwargs={"name": name}, request=view.request)
    profile = known.profile_get(name, version.version)
    headers = {"Location": f"{url}?version={version.version}"}
    return view.row_response(ProfileDetail, profile, status.HTTP_201_CREATED, headers)


def _calibration_response(
    view: ApiView, row: Calibration, code: int = status.HTTP_200_OK
) -> Response:
    """Return the response with uploaded measurements, their first rows and status ``code``."""
    preview = table_rows(calibration_table(row).head(PREVIEW_ROWS))
    return view.row_response(CalibrationDetail, row, code, preview=preview)
