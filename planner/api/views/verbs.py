"""Work on a scenario given in the body: what the commands of these names do."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from planner.api import schema
from planner.api.base import ApiView, idempotency_key, started
from planner.api.serializers.options import (
    CompareRequest,
    ForecastRequest,
    ParetoRequest,
    PdRatioRequest,
    PlaceRequest,
    PlanRequest,
    ProvisionRequest,
    ScenarioGiven,
    SimulateRequest,
    SizeRequest,
)
from planner.api.serializers.runs import RunDetail
from planner.models import Run
from planner.selectors.scenarios import scenario_get
from planner.selectors.traces import trace_get
from planner.services.scenarios import document_run, scenario_run
from planner.services.traces import trace_run


class VerbView(ApiView):
    kind: ClassVar[Run.Kind]
    request_class: ClassVar[type[ScenarioGiven]]

    def post(self, request: Request) -> Response:
        given = self.request_class(data=request.data)
        given.is_valid(raise_exception=True)
        asked: dict[str, Any] = {
            "owner": self.user,
            "kind": self.kind,
            "options": given.options(),
            "idempotency_key": idempotency_key(request),
        }
        if name := given.validated_data.get("scenario"):
            run = scenario_run(scenario=scenario_get(name), **asked)
        elif name := given.validated_data.get("trace"):
            run = trace_run(trace=trace_get(name), **asked)
        else:
            run = document_run(document=given.validated_data["document"], **asked)
        return started(run, RunDetail(run, context={"request": request}).data, request)


@schema.forecast
class ForecastView(VerbView):
    kind = Run.Kind.FORECAST
    request_class = ForecastRequest


@schema.plan
class PlanView(VerbView):
    kind = Run.Kind.PLAN
    request_class = PlanRequest


@schema.simulate
class SimulateView(VerbView):
    kind = Run.Kind.SIMULATE
    request_class = SimulateRequest


@schema.compare
class CompareView(VerbView):
    kind = Run.Kind.COMPARE
    request_class = CompareRequest


@schema.provision
class ProvisionView(VerbView):
    kind = Run.Kind.PROVISION
    request_class = ProvisionRequest


@schema.size
class SizeView(VerbView):
    kind = Run.Kind.SIZE
    request_class = SizeRequest


@schema.pd_ratio
class PdRatioView(VerbView):
    kind = Run.Kind.PD_RATIO
    request_class = PdRatioRequest


@schema.place
class PlaceView(VerbView):
    kind = Run.Kind.PLACE
    request_class = PlaceRequest


@schema.pareto
class ParetoView(VerbView):
    kind = Run.Kind.PARETO
    request_class = ParetoRequest
