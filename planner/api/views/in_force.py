from __future__ import annotations

from django.utils import timezone
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.schema import operation
from planner.api.serializers.in_force import InForce, InForceAsked, InForceRequest
from planner.errors import NotFound
from planner.exports.options import ExportOptions
from planner.selectors.in_force import plan_in_force, plans_in_force
from planner.selectors.runs import run_get
from planner.services.in_force import put_in_force, withdraw
from planner.studies.options import options_of

NONE = "No plan is in force; put one there with POST and the number of its run."


class InForceView(ApiView):
    @operation({200: InForce}, 400, 404, parameters=[InForceAsked])
    def get(self, request: Request) -> Response:
        """The plan in force of a scenario, and what it asks for now: what /metrics says.

        Without a scenario the one that was put there last; `others` names those beside it.
        """
        scenario = valid(InForceAsked(data=request.query_params))["scenario"]
        plan = plan_in_force(scenario) if scenario else plans_in_force().first()
        if plan is None:
            raise NotFound(NONE)
        return Response(InForce(plan).data)

    @operation(
        {201: InForce}, 400, 403, 404, 409,
        request=InForceRequest, examples={"Every day like it": {"run": 7, "repeat": "daily"}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Put a plan in force; for approvers and admins.

        It is frozen as it is, and ends what was in force of its scenario. 409 where the plan of
        another scenario asks for some of its deployments.
        """
        sent = valid(InForceRequest(data=request.data))
        plan = put_in_force(
            run=run_get(sent["run"]),
            options=options_of(ExportOptions, sent["options"]),
            user=self.user,
            now=timezone.now(),
        )
        return Response(InForce(plan).data, status.HTTP_201_CREATED)

    @operation({204: None}, 400, 403, 404, 409, parameters=[InForceAsked])
    def delete(self, request: Request) -> Response:
        """Have no plan in force, of a scenario where several are; for approvers and admins."""
        scenario = valid(InForceAsked(data=request.query_params))["scenario"]
        plan = plan_in_force(scenario) if scenario else None
        if (scenario and plan is None) or not withdraw(
            user=self.user, now=timezone.now(), plan=plan
        ):
            raise NotFound(NONE)
        return Response(status=status.HTTP_204_NO_CONTENT)
