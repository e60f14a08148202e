"""Create the demo on first start: a login, a week of traffic, a scenario and its first run."""

import tempfile
from pathlib import Path

from django.db import transaction

from planner.inputs.demo import DEMO_NAME, SERVICES, demand_week, demo_scenario
from planner.inputs.ingest import IngestOptions
from planner.inputs.scenario.document import parse
from planner.models import Run, User
from planner.models.workspace import current_workspace
from planner.selectors.runs import runs_list
from planner.services.runs import run_create
from planner.services.scenarios import scenario_create
from planner.services.traces import trace_ingest_path

DEMO_USER, DEMO_APPROVER = "demo", "demo-approver"
__all__ = ["DEMO_APPROVER", "DEMO_NAME", "DEMO_USER", "demo_ensure"]


def demo_ensure(*, password: str) -> Run | None:
    """Create the demo unless it was created before, and return its newest run, if any.

    Two demo users share the password: one plans, the other approves. A demo scenario that was
    removed is not created again; the existence of the demo user shows that it was there.
    """
    if not User.objects.filter(username=DEMO_USER).exists():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "demo-week.csv"
            demand_week(SERVICES).write_csv(path)
            _create_demo(path, password)
    return runs_list().filter(name=DEMO_NAME, kind=Run.Kind.COMPARE).first()


@transaction.atomic
def _create_demo(path: Path, password: str) -> None:
    """Create the demo users, the trace of the file ``path``, a scenario of it and its run."""
    user = User.objects.create_superuser(DEMO_USER, password=password)
    user.join(current_workspace(), User.Role.ADMIN)
    User.objects.create_user(DEMO_APPROVER, password=password, role=User.Role.APPROVER)
    options = IngestOptions(name=path.name, format="demand")
    trace = trace_ingest_path(path=path, options=options, owner=user)
    scenario = scenario_create(owner=user, document=demo_scenario(trace.name))
    seed = parse(scenario.document).seed
    run_create(owner=user, kind=Run.Kind.COMPARE, scenario=scenario, seed=seed)
