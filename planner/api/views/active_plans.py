from dataclasses import dataclass
from typing import Any

from django.utils import timezone
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.filters import ActivePlanFilter, ListView, StrictFilter, lists
from planner.api.schema import LOCATION, operation
from planner.api.serializers.fields import (
    OptionalText,
    RelatedText,
    RowNumber,
    StrictSerializer,
    TypedField,
    Values,
)
from planner.api.serializers.options import OptionsSerializer, chosen_values
from planner.api.views.scenarios import ScenarioDetail
from planner.api.views.versions import BranchRequest
from planner.domain.options import options_in, options_of
from planner.domain.serialise import as_json
from planner.errors import NotFound
from planner.models import ActivePlan
from planner.outputs.metrics import PlannedReplicas, desired_by_pool
from planner.outputs.object_names import stored_names
from planner.outputs.options import ExportOptions
from planner.outputs.plan_difference import WeekDifference, week_difference
from planner.selectors import active_plans as known
from planner.selectors.runs import run_get
from planner.services.active_plans import (
    MAX_MESSAGE_CHARACTERS,
    plan_activate,
    plan_end,
    plan_restore,
)
from planner.services.exports import deployment_names_save
from planner.services.scenarios import plan_branch

# The export options with which a plan becomes active.
PLAN_OPTIONS = {
    name: option
    for name, option in options_in(ExportOptions).items()
    if name in ("policy", "region", "model", "repeat", "timezone", "names")
}
NO_PLAN = "No plan is active. Activate a plan with POST and the number of its run."


class ReasonRequest(StrictSerializer):
    message = OptionalText(max_length=MAX_MESSAGE_CHARACTERS, help_text="Reason.")


class ActivationRequest(ReasonRequest, OptionsSerializer):
    """The run with the plan to activate, how to apply it, and why."""

    declared = PLAN_OPTIONS
    run = RowNumber()

    def validate(self, attrs: Values) -> Values:
        """Return run and message, and separately the options of the export."""
        plan = {name: attrs.pop(name) for name in ("run", "message")}
        return plan | {"options": chosen_values(ExportOptions, attrs)}


class ActivePlanQuery(StrictSerializer):
    scenario = serializers.CharField(
        required=False,
        default="",
        max_length=120,
        help_text="Scenario of the plan. Required if several plans are active.",
    )


@dataclass(frozen=True, slots=True)
class OtherPlan:
    run: int
    scenario: str


class ActivePlanItem(serializers.ModelSerializer[ActivePlan]):
    """An active or past plan, as lists show it."""

    run = serializers.IntegerField(source="number")
    proposal = serializers.IntegerField(
        source="proposal_id", allow_null=True, help_text="Approved proposal. null: none."
    )
    timezone = serializers.CharField(source="zone")
    by = RelatedText("by.username", help_text="null: activated by a rule or the CLI.")
    message = serializers.CharField(source="why", help_text="Reason, or the title of the proposal.")
    origin = serializers.IntegerField(
        source="origin_id", allow_null=True, help_text="Earlier plan that was restored. null: none."
    )

    class Meta:
        model = ActivePlan
        fields = ["id", "run", "proposal", "scenario", "policy", "label", "repeat", "timezone",
                  "begins", "ends", "by", "since", "until", "message", "origin"]  # fmt: skip


class ActivePlanPool(serializers.Serializer[Any]):
    name = serializers.CharField()
    region = serializers.CharField()
    model = serializers.CharField()
    gpu = serializers.CharField()
    role = serializers.CharField()
    steps = serializers.ListField(
        child=serializers.ListField(),
        help_text="Steps as [begins, ends, replicas], in the time zone of the plan.",
    )


class ActivePlanDetail(ActivePlanItem):
    pools = ActivePlanPool(many=True, help_text="Pools as they were at activation.")

    class Meta(ActivePlanItem.Meta):
        fields = [*ActivePlanItem.Meta.fields, "pools"]


class PlanPairQuery(serializers.Serializer[Any]):
    """The two plans to compare."""

    old = RowNumber()
    new = RowNumber()


class CurrentPlan(ActivePlanItem):
    desired = TypedField(list[PlannedReplicas], lambda plan: desired_by_pool(plan, timezone.now()))
    others = TypedField(
        list[OtherPlan],
        lambda plan: [
            OtherPlan(other.number, other.scenario)
            for other in known.active_plans().exclude(pk=plan.pk)
        ],
        help_text="Active plans of other scenarios.",
    )

    class Meta(ActivePlanItem.Meta):
        fields = [*ActivePlanItem.Meta.fields, "desired", "others"]


class DeploymentNames(StrictSerializer):
    names = serializers.DictField(
        child=serializers.CharField(max_length=63, allow_blank=True),
        help_text="Own name of a deployment (a DNS-1123 label), by its default name.",
    )


class CurrentPlanView(ApiView):
    @operation({200: CurrentPlan}, parameters=[ActivePlanQuery])
    def get(self, request: Request) -> Response:
        """Get the active plan of a scenario and the replicas that it requests now, as in /metrics.

        Without a scenario, it is the plan that was activated last; `others` lists the other active
        plans.
        """
        scenario = valid(ActivePlanQuery(data=request.query_params))["scenario"]
        plan = known.active_plan(scenario) if scenario else known.active_plans().first()
        if plan is None:
            raise NotFound(NO_PLAN)
        return Response(CurrentPlan(plan).data)

    @operation(
        {201: CurrentPlan},
        request=ActivationRequest, examples={"Every day like it": {"run": 7, "repeat": "daily"}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Activate a plan; for approvers and admins.

        The plan is stored as it is now. It replaces the active plan of its scenario. 409 if the
        active plan of another scenario scales some of the same deployments.
        """
        sent = valid(ActivationRequest(data=request.data))
        plan = plan_activate(
            run=run_get(sent["run"]),
            options=options_of(ExportOptions, sent["options"]),
            user=self.user,
            now=timezone.now(),
            message=sent["message"],
        )
        return Response(CurrentPlan(plan).data, status.HTTP_201_CREATED)

    @operation({204: None}, parameters=[ActivePlanQuery])
    def delete(self, request: Request) -> None:
        """Deactivate the active plan; for approvers and admins.

        Name the scenario if several have an active plan.
        """
        scenario = valid(ActivePlanQuery(data=request.query_params))["scenario"]
        plan = known.active_plan(scenario) if scenario else None
        if scenario and plan is None:
            raise NotFound(NO_PLAN)
        # Without a plan, the service ends the only active one.
        was_ended = plan_end(user=self.user, now=timezone.now(), plan=plan)
        if not was_ended:
            raise NotFound(NO_PLAN)


@lists(ActivePlanItem, rows=lambda: known.activated_plans().defer("pools"))
class ActivePlanListView(ListView[ActivePlan]):
    """List active and past plans of all scenarios or of one, newest first."""

    filter_backends = [StrictFilter]
    filterset_class = ActivePlanFilter


class ActivePlanView(ApiView):
    @operation({200: ActivePlanDetail})
    def get(self, request: Request, number: int) -> Response:
        """Get a plan as it was when it became active."""
        return Response(ActivePlanDetail(known.activated_plan_get(number)).data)


class WeekDifferenceView(ApiView):
    @operation({200: WeekDifference}, parameters=[PlanPairQuery])
    def get(self, request: Request) -> Response:
        """Compare two plans: replicas over a week in UTC, and settings.

        Pairs are (before, after). `changed` is a share of the replica-hours before.
        """
        query = valid(PlanPairQuery(data=request.query_params))
        before = known.activated_plan_get(query["old"])
        after = known.activated_plan_get(query["new"])
        return Response(as_json(week_difference(before, after)))


class PlanRestoreView(ApiView):
    @operation({201: CurrentPlan}, request=ReasonRequest)
    def post(self, request: Request, number: int) -> Response:
        """Activate an earlier plan again, unchanged; for approvers and admins.

        409 if it is active, or if it runs once and its dates are over.
        """
        sent = valid(ReasonRequest(data=request.data))
        earlier, now = known.activated_plan_get(number), timezone.now()
        restored = plan_restore(plan=earlier, user=self.user, now=now, message=sent["message"])
        return Response(CurrentPlan(restored).data, status.HTTP_201_CREATED)


class PlanBranchView(ApiView):
    @operation({201: ScenarioDetail}, request=BranchRequest, parameters=[LOCATION])
    def post(self, request: Request, number: int) -> Response:
        """Create a scenario from the one that a plan was computed from."""
        sent = valid(BranchRequest(data=request.data))
        scenario = plan_branch(plan=known.activated_plan_get(number), user=self.user, **sent)
        return self.row_response(ScenarioDetail, scenario, status.HTTP_201_CREATED)


class DeploymentNamesView(ApiView):
    @operation({200: DeploymentNames})
    def get(self, request: Request) -> Response:
        """Get the names of deployments in exports, by their default name."""
        return Response({"names": stored_names()})

    @operation(
        {200: DeploymentNames},
        request=DeploymentNames, examples={"One": {"names": {"llama-h100-us-east": "chat"}}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Name deployments; an empty name restores the default name.

        Names of other deployments stay.
        """
        sent = valid(DeploymentNames(data=request.data))
        deployment_names_save(names=sent["names"], user=self.user)
        return Response({"names": stored_names()})
