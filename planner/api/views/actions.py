"""Start runs of a scenario given in the body, as the commands of the same names do."""

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


# The start of a run, at the address of its kind. No docstring: ``schema.verb`` gives the summary.
class VerbView(ApiView):
    kind: ClassVar[str]

    def post(self, request: Request) -> Response:
        sent = valid(REQUESTS[self.kind](data=request.data))
        common: Values = {
            "owner": self.user,
            "kind": self.kind,
            "options": sent["options"],
            "idempotency_key": idempotency_key(request),
        }
        if name := sent.get("scenario"):
            run = scenario_run(scenario=scenario_get(name), **common)
        elif name := sent.get("trace"):
            run = trace_run(trace=trace_get(name), **common)
        else:
            run = document_run(document=sent["document"], **common)
        return run_response(run, request)


def _view(kind: str) -> type[VerbView]:
    name = f"{kind.title().replace('-', '')}View"
    view: type[VerbView] = schema.verb(kind)(type(name, (VerbView,), {"kind": kind}))
    return view


VIEWS = {kind: _view(kind) for kind in KINDS}
