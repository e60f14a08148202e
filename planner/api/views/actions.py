"""Start runs of a scenario given in the body, as the commands of the same names do."""

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from planner.api import schema
from planner.api.base import ApiView, idempotency_key, started
from planner.api.serializers.options import REQUESTS
from planner.api.serializers.runs import RunDetail
from planner.domain.kinds.registry import KINDS
from planner.selectors.scenarios import scenario_get
from planner.selectors.traces import trace_get
from planner.services.scenarios import document_run, scenario_run
from planner.services.traces import trace_run


class VerbView(ApiView):
    kind: ClassVar[str]

    def post(self, request: Request) -> Response:
        body = REQUESTS[self.kind](data=request.data)
        body.is_valid(raise_exception=True)
        values = body.validated_data
        start: dict[str, Any] = {
            "owner": self.user,
            "kind": self.kind,
            "options": values["options"],
            "idempotency_key": idempotency_key(request),
        }
        if name := values.get("scenario"):
            run = scenario_run(scenario=scenario_get(name), **start)
        elif name := values.get("trace"):
            run = trace_run(trace=trace_get(name), **start)
        else:
            run = document_run(document=values["document"], **start)
        return started(run, RunDetail(run, context={"request": request}).data, request)


def _view(kind: str) -> type[VerbView]:
    """Return the view of a kind of run."""
    name = f"{kind.title().replace('-', '')}View"
    view: type[VerbView] = schema.verb(kind)(type(name, (VerbView,), {"kind": kind}))
    return view


VIEWS = {kind: _view(kind) for kind in KINDS}
