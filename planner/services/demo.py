"""Create the demo on first start: a login, a week of traffic, a scenario and its first run."""

from __future__ import annotations

import tempfile
from pathlib import Path

from django.db import transaction

from planner.inputs import catalogue
from planner.inputs.demo.scenario import DEMO_NAME, DEMO_SCENARIO
from planner.inputs.demo.traffic import demand_week, services
from planner.inputs.ingest import IngestOptions
from planner.inputs.scenario.document import parse
from planner.models import Run, User
from planner.models.workspace import current_workspace
from planner.selectors.runs import runs_list
from planner.services.draft_profiles import best_tp
from planner.services.runs import run_create
from planner.services.scenarios import scenario_create
from planner.services.traces import trace_ingest_path

DEMO_USER, DEMO_APPROVER = "demo", "demo-approver"
__all__ = ["DEMO_APPROVER", "DEMO_NAME", "DEMO_USER", "demo_ensure"]

CODE_MODEL, CHAT_MODEL = "llama-3.1-8b", "llama-3.1-70b"
CODE_GPU, CHAT_GPU = "A100-80GB", "H100-SXM"
CURRENT_REPLICAS = {"us-east": (5, 3), "us-west": (4, 2)}  # replicas of (code, chat), a guess


def demo_ensure(*, password: str) -> Run | None:
    """Create the demo if it was never created, and return its newest run.

    Two people share the password: one plans, the other approves, so that both sides of a review
    can be tried.

    A removed demo scenario is not created again: the login shows that it existed.
    """
    if not User.objects.filter(username=DEMO_USER).exists():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "demo-week.csv"
            demand_week(services(CODE_MODEL, CHAT_MODEL)).write_csv(path)
            with transaction.atomic():
                user = User.objects.create_superuser(DEMO_USER, password=password)
                user.join(current_workspace(), User.Role.ADMIN)
                User.objects.create_user(DEMO_APPROVER, password=password, role=User.Role.APPROVER)
                trace = trace_ingest_path(
                    path=path,
                    options=IngestOptions(name=path.name, format="demand"),
                    owner=user,
                )
                scenario = scenario_create(owner=user, document=demo_document(trace.name))
                seed = parse(scenario.document).seed
                run_create(owner=user, kind=Run.Kind.COMPARE, scenario=scenario, seed=seed)
    return runs_list().filter(name=DEMO_NAME, kind=Run.Kind.COMPARE).first()


def demo_document(trace: str) -> str:
    """Return the demo scenario for the stored trace of that name."""
    east, west = catalogue_regions()
    pairs = ((CODE_MODEL, CODE_GPU), (CHAT_MODEL, CHAT_GPU))
    profiles, today = [], []
    for i, (model, gpu) in enumerate(pairs):
        profiles.append(f"  - {{model: {model}, gpu: {gpu}, tp: {best_tp(model, gpu)}}}")
        today += [
            f"    - {{model: {model}, region: {region}, gpu: {gpu}, replicas: {counts[i]}}}"
            for region, counts in CURRENT_REPLICAS.items()
        ]
    return DEMO_SCENARIO.format(
        code_model=CODE_MODEL,
        chat_model=CHAT_MODEL,
        profiles="\n".join(profiles),
        today="\n".join(today),
        capacity=", ".join(f"{gpu}: 128" for _, gpu in pairs),
        like_east=east,
        like_west=west,
        trace=trace,
    )


def catalogue_regions() -> tuple[str, str]:
    """Return an eastern and a western built-in region that have a price for both GPU types."""
    priced = [
        name
        for name, region in catalogue.regions().items()
        if {CODE_GPU, CHAT_GPU} <= set(region.usd_per_gpu_hour)
    ]
    east = next((name for name in priced if "us-east" in name or "eastus" in name), priced[0])
    west = next((name for name in priced if "us-west" in name or "westus" in name), priced[-1])
    return east, west
