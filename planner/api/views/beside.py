"""Runs beside each other."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.results import schema_of
from planner.api.schema import operation
from planner.api.serializers.beside import BesideAsked
from planner.selectors.beside import Beside, runs_beside, runs_chosen
from planner.studies.plain import as_json


class RunsBesideView(ApiView):
    @operation({200: schema_of(Beside)}, 400, 404, 409, parameters=[BesideAsked])
    def get(self, request: Request) -> Response:
        """Two to eight completed runs beside each other.

        `differences`: settings that the runs do not share, by their address in the scenario.
        `groups`: figures that they have in common, each with its `values`, its `changes` from the
        first run's (a fraction of it; of shares the difference) and its `marks`: better, worse, or
        empty, which it is of all where traffic, window or limits differ, with why in `note`.
        """
        query = valid(BesideAsked(data=request.query_params))
        beside = runs_beside(runs_chosen(query["run"]), query["policy"])
        return Response(as_json(beside))
