"""Start a run of a scenario or trace that the body names, at the address of the kind of run."""

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from planner.api import schema
from planner.api.base import ApiView, idempotency_key, run_response, valid
from planner.api.serializers.fields import Values
from planner.api.serializers.options import REQUESTS
from planner.domain.kinds.registry import KINDS
from planner.selectors.scenarios import scenario_get
from planner.selectors.traces import trace_get
from planner.services.scenarios import document_run, scenario_run
from planner.services.traces import trace_run


# No docstring: ``schema.run_start`` gives the summary of each kind.
class RunStartView(ApiView):
    kind: ClassVar[str]

    def post(self, request: Request) -> Response:
        # A request has one of: a stored scenario, a trace (for a forecast), a scenario document.
        sent = valid(REQUESTS[self.kind](data=request.data))
        common: Values = {
            "owner": self.user,
            "options": sent["options"],
            "idempotency_key": idempotency_key(request),
        }
        if "scenario" in sent:
            run = scenario_run(scenario=scenario_get(sent["scenario"]), kind=self.kind, **common)
        elif "trace" in sent:
            run = trace_run(trace=trace_get(sent["trace"]), **common)
        else:
            run = document_run(document=sent["document"], kind=self.kind, **common)
        return run_response(run, request)


def _view_of(kind: str) -> type[RunStartView]:
    """Return the view that starts runs of ``kind``, such as PdRatioView for pd-ratio."""
    name = f"{kind.title().replace('-', '')}View"
    view = type(name, (RunStartView,), {"kind": kind})
    described: type[RunStartView] = schema.run_start(kind)(view)
    return described


VIEWS = {kind: _view_of(kind) for kind in KINDS}
