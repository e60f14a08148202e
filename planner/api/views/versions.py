"""Serve versions of scenarios."""

from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.filters import ListView, lists
from planner.api.schema import LOCATION, operation
from planner.api.serializers.fields import OptionalText, RelatedText, RowNumber, StrictSerializer
from planner.api.views.scenarios import ScenarioDetail
from planner.domain.serialise import as_json
from planner.inputs.scenario.document import PARTS
from planner.models import ScenarioVersion
from planner.selectors import scenarios as known
from planner.services.scenarios import MAX_MESSAGE_CHARACTERS, scenario_branch, scenario_restore


class ScenarioVersionItem(serializers.ModelSerializer[ScenarioVersion]):
    """A version as lists show it."""

    author = RelatedText("author.username")
    origin = serializers.SerializerMethodField(
        help_text="Origin of a restored or branched version. Empty: none."
    )

    class Meta:
        model = ScenarioVersion
        fields = ["number", "name", "author", "message", "origin", "created_at"]

    def get_origin(self, version: ScenarioVersion) -> str:
        return str(version.origin) if version.origin else ""


class ScenarioVersionDetail(ScenarioVersionItem):
    class Meta(ScenarioVersionItem.Meta):
        fields = [*ScenarioVersionItem.Meta.fields, "document"]


class SectionQuery(serializers.Serializer[Any]):
    part = serializers.ChoiceField(
        PARTS, required=False, default="", help_text="Section. Default: the whole document."
    )


class VersionPairQuery(SectionQuery):
    """The two versions to compare."""

    old = RowNumber()
    new = RowNumber()


class RestoreRequest(StrictSerializer):
    message = OptionalText(max_length=MAX_MESSAGE_CHARACTERS)


class RestorePartRequest(RestoreRequest, SectionQuery):
    into = OptionalText(
        max_length=120, help_text="Name or id of the scenario that receives the section."
    )


class BranchRequest(RestoreRequest):
    name = OptionalText(max_length=120, help_text="Name of the new scenario. Default: a free name.")


@lists(ScenarioVersionItem, parameters=[SectionQuery])
class VersionListView(ListView[ScenarioVersion]):
    """List versions of a scenario, newest first; with `part` only those that changed it."""

    queryset = ScenarioVersion.objects.none()  # for the OpenAPI document

    def get_queryset(self) -> QuerySet[ScenarioVersion]:
        part = valid(SectionQuery(data=self.request.query_params))["part"]
        return known.versions_changing(known.scenario_get(self.kwargs["scenario"]), part)


class VersionsBetweenView(ApiView):
    @operation({200: known.VersionDifference}, parameters=[VersionPairQuery])
    def get(self, request: Request, scenario: str) -> Response:
        """Compare two versions.

        `settings` holds the settings that differ, by address, each with both values. `lines` is a
        unified diff of the files.
        """
        query = valid(VersionPairQuery(data=request.query_params))
        stored = known.scenario_get(scenario)
        old, new = known.version_get(stored, query["old"]), known.version_get(stored, query["new"])
        return Response(as_json(known.compare_versions(old, new, query["part"])))


class VersionView(ApiView):
    @operation({200: ScenarioVersionDetail})
    def get(self, request: Request, scenario: str, number: int) -> Response:
        """Get a version of a scenario with its document."""
        version = known.version_get(known.scenario_get(scenario), number)
        return Response(ScenarioVersionDetail(version).data)


class VersionRestoreView(ApiView):
    @operation({200: ScenarioDetail}, request=RestorePartRequest)
    def post(self, request: Request, scenario: str, number: int) -> Response:
        """Restore an earlier version as the newest one; later versions stay.

        With `part` only that section is restored. `into` restores it into another scenario.
        """
        sent = valid(RestorePartRequest(data=request.data))
        version = known.version_get(known.scenario_get(scenario), number)
        name = sent.pop("into")
        receiving = known.scenario_get(name) if name else None
        saved = scenario_restore(version=version, user=self.user, into=receiving, **sent)
        return self.row_response(ScenarioDetail, saved)


class VersionBranchView(ApiView):
    @operation({201: ScenarioDetail}, request=BranchRequest, parameters=[LOCATION])
    def post(self, request: Request, scenario: str, number: int) -> Response:
        """Create a scenario from a version of another."""
        sent = valid(BranchRequest(data=request.data))
        version = known.version_get(known.scenario_get(scenario), number)
        branch = scenario_branch(version=version, user=self.user, **sent)
        return self.row_response(ScenarioDetail, branch, status.HTTP_201_CREATED)
