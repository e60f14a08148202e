from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import FileResponse
from django.http.response import HttpResponseBase
from rest_framework import exceptions, generics, status
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from planner.api import schema
from planner.api.base import ApiView
from planner.api.filters import Pages, RunFilter, StrictFilter, StrictOrdering
from planner.api.renderers import CsvRenderer, ParquetRenderer, table_rows
from planner.api.serializers.runs import PoolAsked, RowsAsked, RunDetail, RunItem, SavingsAsked
from planner.errors import NotReady
from planner.exports import CSV_ROWS, PARQUET
from planner.models import Run
from planner.selectors.runs import (
    run_get,
    run_result,
    run_table,
    run_table_path,
    run_table_rows,
    run_tables,
    runs_list,
)
from planner.selectors.savings import savings
from planner.services.provisioning import operator_sensitivity, results_pool, savings_sweep
from planner.services.runs import run_cancel, run_delete

JSON_ROWS = 1000  # of a table in one answer, unless asked for otherwise


class RunListView(ApiView, generics.ListAPIView[Run]):
    serializer_class = RunItem
    filter_backends = [StrictFilter, StrictOrdering]
    filterset_class = RunFilter
    ordering_fields = ["created_at", "finished_at", "kind", "state"]
    pagination_class = Pages

    def get_queryset(self) -> QuerySet[Run]:
        return runs_list()

    @schema.run_list
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.list(request, *args, **kwargs)


class RunView(ApiView):
    @schema.run_get
    def get(self, request: Request, run_id: int) -> Response:
        return _answer(run_get(run_id), request)

    @schema.run_delete
    def delete(self, request: Request, run_id: int) -> Response:
        run_delete(run=run_get(run_id), user=self.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class RunCancelView(ApiView):
    @schema.run_cancel
    def post(self, request: Request, run_id: int) -> Response:
        return _answer(run_cancel(run=run_get(run_id), user=self.user), request)


class RunResultsView(ApiView):
    @schema.run_results
    def get(self, request: Request, run_id: int) -> Response:
        return Response(run_result(run_get(run_id)))


class RunSavingsView(ApiView):
    @schema.run_savings
    def get(self, request: Request, run_id: int) -> Response:
        asked = SavingsAsked(data=request.query_params)
        asked.is_valid(raise_exception=True)
        result = run_result(run_get(run_id))
        policies = result.get("policies", {})
        if not policies:
            raise NotReady(f"Run {run_id} simulated no policies; compare a scenario for savings.")
        baseline = asked.validated_data.get("baseline") or result["baseline"]
        if baseline not in policies:
            there_are = ", ".join(policies)
            raise exceptions.ValidationError(
                {"baseline": f"{baseline!r} is not in this run; there are: {there_are}."}
            )
        return Response({"baseline": baseline, "policies": savings(result, baseline)})


class RunSensitivityView(ApiView):
    @schema.run_sensitivity
    def get(self, request: Request, run_id: int) -> Response:
        run, pool = _pool(request, run_id)
        return Response(operator_sensitivity(run, pool))


class RunSweepView(ApiView):
    @schema.run_sweep
    def get(self, request: Request, run_id: int, by: str) -> Response:
        run, pool = _pool(request, run_id)
        return Response(savings_sweep(run, pool, by))


def _pool(request: Request, run_id: int) -> tuple[Run, dict[str, Any]]:
    asked = PoolAsked(data=request.query_params)
    asked.is_valid(raise_exception=True)
    run = run_get(run_id)
    given = asked.validated_data
    return run, results_pool(run, given.get("pool", ""), given.get("phase", ""))


class RunTablesView(ApiView):
    @schema.run_tables
    def get(self, request: Request, run_id: int) -> Response:
        run = run_get(run_id)
        run_result(run)  # says why there are none
        names = run_tables(run)
        links = {
            name: reverse(
                "api:run-table", kwargs={"run_id": run.pk, "table": name}, request=request
            )
            for name in names
        }
        return Response({"tables": names, "links": links})


class RunTableView(ApiView):
    renderer_classes = [JSONRenderer, CsvRenderer, ParquetRenderer]

    @schema.run_table
    def get(self, request: Request, run_id: int, table: str) -> HttpResponseBase:
        given = RowsAsked(data=request.query_params)
        given.is_valid(raise_exception=True)
        run, form = run_get(run_id), request.accepted_renderer.format
        offset, limit = given.validated_data["offset"], given.validated_data.get("limit")
        total = run_table_rows(run, table)
        name = f"run-{run_id}-{table}.{form}"
        if form == "parquet":
            return FileResponse(
                run_table_path(run, table).open("rb"),
                as_attachment=True,
                filename=name,
                content_type=PARQUET,
            )
        if form == "csv":
            if limit is None and total > CSV_ROWS:
                raise NotReady(
                    f"Table {table} has {total:,} rows, and a CSV holds {CSV_ROWS:,} at most; give "
                    "a limit, or take it as Parquet."
                )
            headers = {"Content-Disposition": f'attachment; filename="{name}"'}
            return Response(run_table(run, table, offset, limit), headers=headers)
        limit = limit or JSON_ROWS
        rows = run_table(run, table, offset, limit)
        body = {
            "table": table,
            "columns": rows.columns,
            "total": total,
            "offset": offset,
            "limit": limit,
            "rows": table_rows(rows),
        }
        return Response(body)


def _answer(run: Run, request: Request) -> Response:
    headers = {} if run.finished else {"Retry-After": "1"}
    return Response(RunDetail(run, context={"request": request}).data, headers=headers)
