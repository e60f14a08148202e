"""Answer what-if questions about a stored plan, and vary settings of a scenario in a sweep."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, idempotency_key, run_response, valid, validated
from planner.api.filters import ListView, lists
from planner.api.results import schema_of
from planner.api.schema import KEY, LOCATION, operation, removal, run_started
from planner.api.serializers.fields import (
    FiniteField,
    LinkField,
    RelatedText,
    StrictSerializer,
    Values,
)
from planner.api.serializers.options import WORK, run_options
from planner.domain.serialise import as_json
from planner.domain.whatif.figures import FIGURES, WhatIf
from planner.domain.whatif.settings import MOST_AXES, TIER_LIMITS, Axis, chosen_of
from planner.models import Run, Sweep
from planner.selectors import sweeps as known
from planner.selectors.runs import run_get
from planner.selectors.scenarios import scenario_get
from planner.services import whatif as services

EXAMPLES = {
    "A kept scenario": {
        "scenario": "Chat in one region",
        "vary": [
            {"key": "forecast.quantile", "values": [0.8, 0.9, None]},
            {"key": "tiers[chat].ttft_ms", "values": [500, 1000]},
        ],
    }
}


class WhatIfRequest(StrictSerializer):
    """The changes to a stored plan; values that are not given stay."""

    growth = FiniteField(required=False, help_text="Factor on demand. Default: 1.")
    quantile = FiniteField(required=False, help_text="Forecast percentile, as a fraction.")
    spare = serializers.IntegerField(
        required=False, min_value=0, max_value=1000, help_text="Spare replicas per pool."
    )
    prices = serializers.DictField(
        child=FiniteField(), required=False, help_text="Factors on prices, by GPU type."
    )
    tiers = serializers.DictField(
        child=serializers.DictField(child=FiniteField()),
        required=False,
        help_text=f"Limits by interactive tier: {', '.join(TIER_LIMITS)}.",
    )
    without = serializers.ListField(
        child=serializers.CharField(max_length=120), required=False, help_text="Excluded GPU types."
    )
    mix = serializers.DictField(
        child=FiniteField(),
        required=False,
        help_text="Largest share of a region's peak GPUs, by GPU type.",
    )

    values = serializers.DictField(
        child=serializers.JSONField(),
        required=False,
        help_text="Other values by scenario key, such as `objective.epsilon`.",
    )

    def chosen(self) -> Values:
        """Return the changed values, by name of a what-if setting or by address in the scenario."""
        return chosen_of(self.validated_data)


class RunWhatIfView(ApiView):
    @operation({200: WhatIf}, request=WhatIfRequest)
    def post(self, request: Request, run_id: int) -> Response:
        """Change the plan of a run without a simulation.

        Answered at once for plans, comparisons and Pareto fronts: demand, forecast percentile,
        spare replicas, prices, limits and GPU types. `values` changes any other setting by its
        dotted path. `notes` lists what is uncertain. Nothing is stored. If there is no plan,
        `totals` is null and `conflict` gives the reason.
        """
        chosen = validated(WhatIfRequest(data=request.data)).chosen()
        return Response(as_json(services.what_if_answer(run_get(run_id), chosen)))


class RunReplayView(ApiView):
    @run_started(request=WhatIfRequest)
    def post(self, request: Request, run_id: int) -> Response:
        """Run a changed plan as a new scenario."""
        chosen = validated(WhatIfRequest(data=request.data)).chosen()
        run = services.what_if_replay(
            run=run_get(run_id), user=self.user, chosen=chosen,
            idempotency_key=idempotency_key(request),
        )  # fmt: skip
        return run_response(run, request)


class MonthReplayView(ApiView):
    @run_started(request=None)
    def post(self, request: Request, run_id: int) -> Response:
        """Replay a week of an outlook's last month as a new scenario."""
        run = services.outlook_replay(
            run=run_get(run_id), user=self.user, idempotency_key=idempotency_key(request)
        )
        return run_response(run, request)


class SweepAxis(StrictSerializer):
    key = serializers.CharField(
        max_length=300,
        help_text="Address such as `tiers[chat].ttft_ms`, or a setting such as `growth`.",
    )
    values = serializers.ListField(
        child=serializers.JSONField(), min_length=1, help_text="Values. null: the default."
    )


class SweepRequest(StrictSerializer):
    """A stored scenario or a document, and one or two settings with their values."""

    scenario = serializers.CharField(
        max_length=120, required=False, help_text="Name or id of the scenario."
    )
    document = serializers.CharField(
        required=False, trim_whitespace=False, help_text="Scenario as YAML."
    )
    kind = serializers.ChoiceField(WORK, default=Run.Kind.PLAN.value, help_text="Kind of the runs.")
    options = serializers.DictField(required=False, help_text="Options of every run.")
    vary = serializers.ListField(child=SweepAxis(), min_length=1, max_length=MOST_AXES)

    def validate(self, attrs: Values) -> Values:
        """Check that exactly one of scenario and document is given; add the run's options."""
        if ("scenario" in attrs) == ("document" in attrs):
            raise serializers.ValidationError("Give exactly one of scenario, document.")
        return {**attrs, "options": run_options(attrs)}


class GridQuery(serializers.Serializer[Any]):
    figure = serializers.ChoiceField(
        [(figure.name, figure.label) for figure in FIGURES],
        default=known.DEFAULT.name,
        help_text="Figure of the cells.",
    )


class SweepItem(serializers.ModelSerializer[Sweep]):
    scenario = RelatedText("scenario.name")
    owner = RelatedText("owner.username")
    axes = serializers.ListField(child=serializers.DictField(), help_text="`key` and `values`.")
    link = LinkField("sweep", "number")

    class Meta:
        model = Sweep
        fields = ["id", "name", "scenario", "kind", "options", "axes", "owner", "created_at",
                  "link"]  # fmt: skip


class SweepDetail(SweepItem):
    """A sweep with a figure of every cell; rows follow the first setting, cells the second."""

    grid = serializers.SerializerMethodField()

    class Meta(SweepItem.Meta):
        fields = [*SweepItem.Meta.fields, "grid"]

    @extend_schema_field(schema_of(known.Grid))
    def get_grid(self, sweep: Sweep) -> Values:
        return dict(as_json(known.sweep_grid(sweep, self.context.get("figure", known.DEFAULT))))


@lists(SweepItem, rows=known.sweeps_list)
class SweepListView(ListView[Sweep]):
    """List sweeps."""

    @operation(
        {202: SweepDetail}, request=SweepRequest, parameters=[KEY, LOCATION], examples=EXAMPLES,
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Run a scenario for every pair of values of two settings.

        At most 256 runs start, in parallel on all workers. All are checked before any starts. Poll
        the sweep until `grid.going` is 0.
        """
        sent = valid(SweepRequest(data=request.data))
        scenario = scenario_get(sent["scenario"]) if "scenario" in sent else None
        sweep = services.sweep_create(
            owner=self.user,
            scenario=scenario,
            document=scenario.document if scenario else sent["document"],
            kind=sent["kind"],
            options=sent["options"],
            axes=[Axis(axis["key"], tuple(axis["values"])) for axis in sent["vary"]],
            idempotency_key=idempotency_key(request),
        )
        return self.row_response(SweepDetail, sweep, status.HTTP_202_ACCEPTED, {"Retry-After": "1"})


class SweepView(ApiView):
    @operation({200: SweepDetail}, parameters=[GridQuery])
    def get(self, request: Request, number: int) -> Response:
        """Get a sweep with a figure of every cell."""
        query = valid(GridQuery(data=request.query_params))
        figure = known.figure_by_name(query["figure"])
        return self.row_response(SweepDetail, known.sweep_get(number), figure=figure)

    @removal
    def delete(self, request: Request, number: int) -> None:
        """Remove a finished sweep with its runs."""
        services.sweep_delete(sweep=known.sweep_get(number), user=self.user)


class SweepCancelView(ApiView):
    @operation({200: SweepDetail}, request=None)
    def post(self, request: Request, number: int) -> Response:
        """Cancel the unfinished runs of a sweep."""
        sweep = known.sweep_get(number)
        services.sweep_cancel(sweep=sweep, user=self.user)
        return self.row_response(SweepDetail, sweep)
