from django.db.models import QuerySet
from django.utils import timezone
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.filters import KeptPlanFilter, ListView, StrictFilter, lists
from planner.api.schema import operation
from planner.api.serializers.active_plans import (
    InForce,
    InForceAsked,
    InForceRequest,
    KeptPlan,
    KeptPlanDetail,
    PlansBetweenAsked,
    WhySaid,
)
from planner.api.serializers.scenarios import ScenarioDetail
from planner.api.serializers.versions import BranchRequest
from planner.domain.options import options_of
from planner.domain.serialise import as_json
from planner.errors import NotFound
from planner.models import ActivePlan
from planner.outputs.options import ExportOptions
from planner.outputs.plan_comparison import PlansBetween, plans_between
from planner.selectors.active_plans import (
    activated_plan_get,
    activated_plans,
    active_plan,
    active_plans,
)
from planner.selectors.runs import run_get
from planner.services.active_plans import plan_activate, plan_end, plan_restore
from planner.services.scenarios import plan_branch

NONE = "No plan is active. Activate a plan with POST and the number of its run."


class InForceView(ApiView):
    @operation({200: InForce}, 400, 404, parameters=[InForceAsked])
    def get(self, request: Request) -> Response:
        """Get the active plan of a scenario and the replicas that it requests now, as in /metrics.

        Without a scenario, it is the plan that was activated last; `others` lists the other active
        plans.
        """
        scenario = valid(InForceAsked(data=request.query_params))["scenario"]
        plan = active_plan(scenario) if scenario else active_plans().first()
        if plan is None:
            raise NotFound(NONE)
        return Response(InForce(plan).data)

    @operation(
        {201: InForce}, 400, 403, 404, 409,
        request=InForceRequest, examples={"Every day like it": {"run": 7, "repeat": "daily"}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Activate a plan; for approvers and admins.

        The plan is stored as it is now. It replaces the active plan of its scenario. 409 if the
        active plan of another scenario scales some of the same deployments.
        """
        sent = valid(InForceRequest(data=request.data))
        plan = plan_activate(
            run=run_get(sent["run"]),
            options=options_of(ExportOptions, sent["options"]),
            user=self.user,
            now=timezone.now(),
            message=sent["message"],
        )
        return Response(InForce(plan).data, status.HTTP_201_CREATED)

    @operation({204: None}, 400, 403, 404, 409, parameters=[InForceAsked])
    def delete(self, request: Request) -> Response:
        """Deactivate the active plan; for approvers and admins.

        Name the scenario if several have an active plan.
        """
        scenario = valid(InForceAsked(data=request.query_params))["scenario"]
        plan = active_plan(scenario) if scenario else None
        if (scenario and plan is None) or not plan_end(
            user=self.user, now=timezone.now(), plan=plan
        ):
            raise NotFound(NONE)
        return Response(status=status.HTTP_204_NO_CONTENT)


@lists(KeptPlan)
class KeptPlanListView(ListView[ActivePlan]):
    """List active and past plans of all scenarios or of one, newest first."""

    filter_backends = [StrictFilter]
    filterset_class = KeptPlanFilter

    def get_queryset(self) -> QuerySet[ActivePlan]:
        return activated_plans().defer("pools")


class KeptPlanView(ApiView):
    @operation({200: KeptPlanDetail}, 404)
    def get(self, request: Request, number: int) -> Response:
        """Get a plan as it was when it became active."""
        return Response(KeptPlanDetail(activated_plan_get(number)).data)


class PlansBetweenView(ApiView):
    @operation({200: PlansBetween}, 400, 404, parameters=[PlansBetweenAsked])
    def get(self, request: Request) -> Response:
        """Compare two plans: replicas over a week in UTC, and settings.

        Pairs are (before, after). `changed` is a share of the replica-hours before.
        """
        query = valid(PlansBetweenAsked(data=request.query_params))
        old, new = (activated_plan_get(query[name]) for name in ("old", "new"))
        return Response(as_json(plans_between(old, new)))


class PlanRestoreView(ApiView):
    @operation({201: InForce}, 400, 403, 404, 409, 413, 415, request=WhySaid)
    def post(self, request: Request, number: int) -> Response:
        """Activate an earlier plan again, unchanged; for approvers and admins.

        409 if it is active, or if it runs once and its dates are over.
        """
        again = plan_restore(
            plan=activated_plan_get(number),
            user=self.user,
            now=timezone.now(),
            **valid(WhySaid(data=request.data)),
        )
        return Response(InForce(again).data, status.HTTP_201_CREATED)


class PlanBranchView(ApiView):
    @operation({201: ScenarioDetail}, 400, 403, 404, 413, 415, 422, request=BranchRequest)
    def post(self, request: Request, number: int) -> Response:
        """Create a scenario from the one that a plan was computed from."""
        sent = valid(BranchRequest(data=request.data))
        scenario = plan_branch(plan=activated_plan_get(number), user=self.user, **sent)
        body = ScenarioDetail(scenario, context={"request": request}).data
        return Response(body, status.HTTP_201_CREATED)
