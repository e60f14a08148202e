"""Compare runs."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.schema import operation
from planner.domain.serialise import as_json
from planner.selectors.run_comparison import (
    MAX_RUNS,
    MIN_RUNS,
    RunComparison,
    compare_runs,
    runs_to_compare,
)


class BesideAsked(serializers.Serializer[Any]):
    """The runs to compare; the first is the base of the comparison."""

    run = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=2**31 - 1),
        min_length=MIN_RUNS,
        max_length=MAX_RUNS,
        help_text="Number of a completed run. Repeat for several.",
    )
    policy = serializers.CharField(
        required=False,
        default="",
        max_length=161,
        help_text="Policy to compare. Default: the recommended policy of each run.",
    )


class RunsBesideView(ApiView):
    @operation({200: RunComparison}, 400, 404, 409, parameters=[BesideAsked])
    def get(self, request: Request) -> Response:
        """Compare two to eight completed runs.

        `differences`: settings that differ, by their address in the scenario. `groups`: figures
        that the runs have in common. Each figure has `values`, `changes` from the first run and
        `marks`. A change is a fraction of the first run's value; for shares it is the difference. A
        mark is better, worse or empty. All marks are empty if traffic, window or limits differ;
        `note` gives the reason.
        """
        query = valid(BesideAsked(data=request.query_params))
        beside = compare_runs(runs_to_compare(query["run"]), query["policy"])
        return Response(as_json(beside))
