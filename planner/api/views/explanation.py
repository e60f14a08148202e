"""Explain the recommended numbers of replicas."""

from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView
from planner.api.schema import operation
from planner.domain.serialise import as_json
from planner.selectors.explanation import Chain, explanation_chains
from planner.selectors.runs import run_get


class RunWhyView(ApiView):
    @operation({200: list[Chain]}, 404, 409)
    def get(self, request: Request, run_id: int) -> Response:
        """Explain the recommended numbers of replicas of a run.

        For every pool a list of sentences: demand, forecast, size, plan, sources, uncertainty.
        """
        return Response(as_json(explanation_chains(run_get(run_id))))
