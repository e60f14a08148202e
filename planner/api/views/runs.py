from typing import Any

from django.http import FileResponse, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from rest_framework import exceptions, serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from planner.api.base import ApiView, valid
from planner.api.filters import ListView, RunFilter, StrictFilter, StrictOrdering, lists
from planner.api.renderers import AnyAccept, CsvRenderer, ParquetRenderer, table_rows
from planner.api.results import AnyResult
from planner.api.schema import CSV, JSON, operation, removal
from planner.api.serializers import runs as bodies
from planner.domain.options import options_of
from planner.domain.provisioning.figures import PoolFigures
from planner.domain.serialise import as_json
from planner.errors import NotReady
from planner.models import Run
from planner.outputs import CSV_ROWS, PARQUET
from planner.outputs.files import FORMATS
from planner.outputs.options import ExportOptions
from planner.selectors import run_comparison
from planner.selectors.explanation import Chain, explanation_chains
from planner.selectors.runs import (
    run_get,
    run_result,
    run_table,
    run_table_path,
    run_table_rows,
    run_tables,
    runs_list,
    savings,
    stored_result,
)
from planner.services.exports import run_export
from planner.services.provisioning import operator_sensitivity, pool_of_run, savings_sweep
from planner.services.runs import run_cancel, run_delete

MEDIA = dict.fromkeys(form.media.partition(";")[0] for form in FORMATS.values())
JSON_ROWS = 1000  # default number of rows in one answer


@lists(bodies.RunItem, rows=runs_list)
class RunListView(ListView[Run]):
    """List runs."""

    filter_backends = [StrictFilter, StrictOrdering]
    filterset_class = RunFilter
    ordering_fields = ["created_at", "finished_at", "kind", "state"]


class RunView(ApiView):
    @operation({200: bodies.RunDetail})
    def get(self, request: Request, run_id: int) -> Response:
        """Get a run; poll it until its state is completed, failed, errored or cancelled."""
        return _run_response(self, run_get(run_id))

    @removal
    def delete(self, request: Request, run_id: int) -> None:
        """Remove a finished run and its results."""
        run_delete(run=run_get(run_id), user=self.user)


class RunCancelView(ApiView):
    @operation({200: bodies.RunDetail}, request=None)
    def post(self, request: Request, run_id: int) -> Response:
        """Cancel a run.

        A waiting run stops at once, a started one at its next report of progress.
        """
        return _run_response(self, run_cancel(run=run_get(run_id), user=self.user))


class RunResultsView(ApiView):
    @operation({200: AnyResult})
    def get(self, request: Request, run_id: int) -> Response:
        """Get the figures of a completed run.

        The keys are those that the command of the run's kind prints with `--json`.
        """
        return Response(run_result(run_get(run_id)))


class RunExportView(ApiView):
    content_negotiation_class = AnyAccept

    @operation(
        {(200, media): OpenApiTypes.BINARY for media in MEDIA}, parameters=[bodies.ExportQuery]
    )
    def get(self, request: Request, run_id: int) -> HttpResponseBase:
        """Export a run as a file: figures, a report, or the objects that carry out its plan.

        The file equals that of `bin/manage export`. Objects for a cluster are validated against
        their published schema.
        """
        query = valid(bodies.ExportQuery(data=request.query_params))
        file = run_export(
            by=self.user,
            run=run_get(run_id),
            to=query["to"],
            options=options_of(ExportOptions, query["options"]),
            now=timezone.now(),
        )
        headers = {"Content-Disposition": f'attachment; filename="{file.name}"'}
        return HttpResponse(file.content, content_type=file.media, headers=headers)


class RunSavingsView(ApiView):
    @operation({200: OpenApiTypes.OBJECT}, parameters=[bodies.SavingsQuery])
    def get(self, request: Request, run_id: int) -> Response:
        """Get the savings of each policy against a baseline.

        By policy and measure (gpu_hours, cost_usd, energy_kwh, carbon_kg): `value`, `baseline`,
        `saved` and `fraction` of the baseline. A negative saving is a loss.
        """
        query = valid(bodies.SavingsQuery(data=request.query_params))
        result = stored_result(run_get(run_id))
        policies = result.policies
        if not policies:
            raise NotReady(f"Run {run_id} simulated no policies; compare a scenario for savings.")
        baseline = query.get("baseline") or result.baseline
        if baseline not in policies:
            known = ", ".join(policies)
            raise exceptions.ValidationError(
                {"baseline": f"{baseline!r} is not in this run. Known: {known}."}
            )
        return Response({"baseline": baseline, "policies": savings(policies, baseline)})


class RunSensitivityView(ApiView):
    @operation({200: OpenApiTypes.OBJECT}, parameters=[bodies.PoolQuery])
    def get(self, request: Request, run_id: int) -> Response:
        """Get the response of operators to length, batch, rate and GPU share in a provisioning run.

        It covers one pool and phase, by default with batch 1 and one GPU, as arrays by operator. It
        is computed on the first request (seconds) and then stored.
        """
        run, pool = _run_and_pool(request, run_id)
        return Response(operator_sensitivity(run, pool))


class RunSweepView(ApiView):
    @operation({200: OpenApiTypes.OBJECT}, parameters=[bodies.PoolQuery])
    def get(self, request: Request, run_id: int, by: str) -> Response:
        """Get the savings of operators against whole replicas by length, rate or model size.

        `by` is length, rate or size. Rows hold `model_gpus`, `operator_gpus` and the shares saved:
        `gpus`, `energy` and `memory`. These are missing if no plan meets the limit.
        """
        run, pool = _run_and_pool(request, run_id)
        return Response(savings_sweep(run, pool, by))


def _run_and_pool(request: Request, run_id: int) -> tuple[Run, PoolFigures]:
    """Return a provisioning run, and the figures of the pool and phase that the request names."""
    query = valid(bodies.PoolQuery(data=request.query_params))
    run = run_get(run_id)
    return run, pool_of_run(run, query.get("pool", ""), query.get("phase", ""))


class RunTablesView(ApiView):
    @operation({200: bodies.TableNames})
    def get(self, request: Request, run_id: int) -> Response:
        """List the tables of a completed run."""
        run = run_get(run_id)
        run_result(run)  # raises NotReady with the reason if there are none
        names = run_tables(run)
        links = {}
        for name in names:
            address = {"run_id": run.pk, "table": name}
            links[name] = reverse("api:run-table", kwargs=address, request=request)
        return Response({"tables": names, "links": links})


class RunTableView(ApiView):
    renderer_classes = [JSONRenderer, CsvRenderer, ParquetRenderer]

    @operation(
        {(200, JSON): bodies.TableRows, (200, CSV): str, (200, PARQUET): OpenApiTypes.BINARY},
        operation_id="runs_table_retrieve", parameters=[bodies.TableRowsQuery],
    )  # fmt: skip
    def get(self, request: Request, run_id: int, table: str) -> HttpResponseBase:
        """Get rows of a table as JSON, CSV or Parquet.

        `Accept: text/csv` or `?format=csv` gives CSV. `?format=parquet` gives the whole table as a
        Parquet file. Use it for `requests`, which has a row per request of the replay.
        """
        query = valid(bodies.TableRowsQuery(data=request.query_params))
        run, format = run_get(run_id), request.accepted_renderer.format
        offset, limit = query["offset"], query.get("limit")
        total = run_table_rows(run, table)
        name = f"run-{run_id}-{table}.{format}"
        if format == "parquet":
            # Send the stored file instead of loading the whole table.
            file = run_table_path(run, table).open("rb")
            return FileResponse(file, as_attachment=True, filename=name, content_type=PARQUET)
        if format == "csv":
            if limit is None and total > CSV_ROWS:
                raise NotReady(
                    f"Table {table} has {total:,} rows, and a CSV holds {CSV_ROWS:,} at most. Give "
                    "a limit, or take it as Parquet."
                )
            headers = {"Content-Disposition": f'attachment; filename="{name}"'}
            return Response(run_table(run, table, offset, limit), headers=headers)
        page = {"total": total, "offset": offset, "limit": limit or JSON_ROWS}
        rows = run_table(run, table, offset, page["limit"])
        return Response({"table": table, **page, "columns": rows.columns, "rows": table_rows(rows)})


def _run_response(view: ApiView, run: Run) -> Response:
    """Return the response with a run; Retry-After tells the client to poll an unfinished one."""
    headers = {} if run.is_finished else {"Retry-After": "1"}
    return view.row_response(bodies.RunDetail, run, headers=headers)


class RunWhyView(ApiView):
    @operation({200: list[Chain]})
    def get(self, request: Request, run_id: int) -> Response:
        """Explain the recommended numbers of replicas of a run.

        For every pool a list of sentences: demand, forecast, size, plan, sources, uncertainty.
        """
        return Response(as_json(explanation_chains(run_get(run_id))))


class RunsQuery(serializers.Serializer[Any]):
    """The runs to compare; the first is the base of the comparison."""

    run = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=2**31 - 1),
        min_length=run_comparison.MIN_RUNS,
        max_length=run_comparison.MAX_RUNS,
        help_text="Number of a completed run. Repeat for several.",
    )
    policy = serializers.CharField(
        required=False,
        default="",
        max_length=161,
        help_text="Policy to compare. Default: the recommended policy of each run.",
    )


class RunComparisonView(ApiView):
    @operation({200: run_comparison.RunComparison}, parameters=[RunsQuery])
    def get(self, request: Request) -> Response:
        """Compare two to eight completed runs.

        `differences`: settings that differ, by their address in the scenario. `groups`: figures
        that the runs have in common. Each figure has `values`, `changes` from the first run and
        `marks`. A change is a fraction of the first run's value; for shares it is the difference. A
        mark is better, worse or empty. All marks are empty if traffic, window or limits differ;
        `note` gives the reason.
        """
        query = valid(RunsQuery(data=request.query_params))
        runs = run_comparison.runs_to_compare(query["run"])
        return Response(as_json(run_comparison.compare_runs(runs, query["policy"])))
