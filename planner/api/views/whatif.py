"""Answer what-if questions about a stored plan."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, checked, idempotency_key, started
from planner.api.schema import operation, run_started
from planner.api.serializers.strict_fields import FiniteField, StrictSerializer, Values
from planner.domain.serialise import as_json
from planner.domain.whatif.figures import WhatIf
from planner.domain.whatif.settings import TIER_LIMITS, chosen_of
from planner.selectors.runs import run_get
from planner.services.whatif import outlook_replay, what_if_answer, what_if_replay


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
        child=serializers.CharField(max_length=120),
        required=False,
        help_text="Excluded GPU types.",
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
        """Return the values by name of a setting or by address."""
        return chosen_of(self.validated_data)


class RunWhatIfView(ApiView):
    @operation({200: WhatIf}, 400, 404, 409, 422, request=WhatIfRequest)
    def post(self, request: Request, run_id: int) -> Response:
        """Change the plan of a run without a simulation.

        Answered at once for plans, comparisons and Pareto fronts: demand, forecast percentile,
        spare replicas, prices, limits and GPU types. `values` changes any other setting by its
        dotted path. `notes` lists what is uncertain. Nothing is stored. If there is no plan,
        `totals` is null and `conflict` gives the reason.
        """
        chosen = checked(WhatIfRequest(data=request.data)).chosen()
        return Response(as_json(what_if_answer(run_get(run_id), chosen)))


class RunReplayView(ApiView):
    @run_started(request=WhatIfRequest)
    def post(self, request: Request, run_id: int) -> Response:
        """Run a changed plan as a new scenario."""
        chosen = checked(WhatIfRequest(data=request.data)).chosen()
        run = what_if_replay(
            run=run_get(run_id), user=self.user, chosen=chosen,
            idempotency_key=idempotency_key(request),
        )  # fmt: skip
        return started(run, request)


class MonthReplayView(ApiView):
    @run_started(request=None)
    def post(self, request: Request, run_id: int) -> Response:
        """Replay a week of an outlook's last month as a new scenario."""
        run = outlook_replay(
            run=run_get(run_id), user=self.user, idempotency_key=idempotency_key(request)
        )
        return started(run, request)
