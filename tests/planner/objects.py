"""A row of each kind, and what the addresses of the product call it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from planner.inputs import catalogue
from planner.models import (
    ActivePlan,
    Calibration,
    Channel,
    Firing,
    Outcome,
    OwnGpu,
    OwnModel,
    PriceList,
    Profile,
    ProfileVersion,
    Proposal,
    Run,
    Schedule,
    Sweep,
    Trace,
    User,
)
from planner.models.workspace import current_workspace
from planner.selectors.hardware_rows import profile_columns, spec_facts
from planner.services.scenarios import scenario_create
from planner.services.sources import source_create
from planner.services.tokens import token_create
from tests.planner.plan_runs import planned_run
from tests.planner.samples import DOCUMENT

WHEN = datetime(2024, 5, 18, tzinfo=UTC)


@dataclass(frozen=True)
class Objects:
    """One of each kind, made by somebody who is asked for nothing here."""

    by_word: dict[str, Any]  # of the address: its first words, to what the arguments are

    def arguments(self, route: str, names: list[str]) -> dict[str, Any]:
        """Of the route of an address; the longest beginning counts."""
        word = max((w for w in self.by_word if route.startswith(w)), key=len, default="")
        assert word, f"{route}: say in this file what its arguments are"
        values = self.by_word[word]
        first = values[0] if isinstance(values, tuple) else values
        by_name = {names[0]: first}
        if len(names) > 1:
            by_name[names[1]] = {
                "name": "plan",
                "table": "plan",
                "by": "policy",
                "number": 1,
            }[names[1]]
        return by_name


def made(owner: User, mark: str) -> Objects:
    """A row of each kind in the current workspace; names begin with ``mark``."""
    trace = Trace.objects.create(
        name=f"{mark}-trace", file_name="x.csv", sha256=mark * 8, bytes=1, owner=owner,
        state=Trace.State.REFUSED,
    )  # fmt: skip
    scenario = scenario_create(owner=owner, document=DOCUMENT.replace("Chat", f"{mark} chat"))
    run = planned_run(owner, scenario=scenario)
    sweep = Sweep.objects.create(
        name="s", kind="plan", document=scenario.document, owner=owner,
        axes=[{"key": "seed", "values": [1]}],
    )  # fmt: skip
    Run.objects.create(kind="plan", sweep=sweep, cell=0, owner=owner, state=Run.State.CANCELLED)
    profile = Profile.objects.create(name=f"{mark}-profile", model="llama-3.1-8b", gpu="H100",
                                     owner=owner)  # fmt: skip
    speed = next(iter(catalogue.profiles().values()))
    ProfileVersion.objects.create(
        profile=profile, version=1, created_by=owner, **profile_columns(speed)
    )
    calibration = Calibration.objects.create(
        name="c", kind="benchmark", file_name="c.csv", sha256=mark, bytes=1, owner=owner
    )
    h100, llama = catalogue.gpu("H100-SXM"), catalogue.model("llama-3.1-8b")
    by = {"owner": owner, "source": "x"}
    gpu = OwnGpu.objects.create(name=f"{mark}-gpu", facts=spec_facts(h100), **by)
    model = OwnModel.objects.create(name=f"{mark}-model", facts=spec_facts(llama), **by)
    prices = PriceList.objects.create(name=f"{mark}-prices", facts={"prices": []}, **by)
    schedule = Schedule.objects.create(
        name=f"{mark}-schedule", scenario=scenario, cron="0 5 * * *", next_due=WHEN, owner=owner
    )
    source = source_create(
        owner=owner, name=f"{mark}-source", kind="samples", settings={}, bin_s=900
    )
    proposal = Proposal.objects.create(title="t", run=run, policy="lt-i", author=owner)
    firing = Firing.objects.create(
        schedule=schedule, due_at=WHEN, fired_at=WHEN, state=Firing.State.MISSED
    )
    plan = ActivePlan.objects.create(
        run=run, number=run.pk, scenario="x", policy="lt-i", repeat="once", zone="UTC",
        begins=WHEN, ends=WHEN, pools=[], since=WHEN,
    )  # fmt: skip
    outcome = Outcome.objects.create(
        plan=plan, begins=WHEN, ends=WHEN, started_at=WHEN, state=Outcome.State.FAILED
    )
    channel = Channel.objects.create(kind="webhook", address="https://x.example", salt="x")
    member = User.objects.create_user(f"{mark}-member", role="viewer")
    token = token_create(user=owner).token
    return Objects(
        {
            "people/": member.username,
            "users/": member.username,
            "notices/": channel.pk,
            "help/": "plan-tomorrow",
            "workspaces/": current_workspace().slug,
            "me/tokens/": token.pk,
            "traces/": trace.name,
            "hardware/profiles/": profile.name,
            "profiles/": profile.name,
            "hardware/calibrations/": calibration.pk,
            "calibrations/": calibration.pk,
            "hardware/gpus/": gpu.name,
            "gpus/": gpu.name,
            "hardware/models/": model.name,
            "models/": model.name,
            "hardware/prices/lists/": prices.name,
            "price-lists/": prices.name,
            "scenarios/": scenario.pk,
            "sweeps/": sweep.pk,
            "what-if/": sweep.pk,
            "runs/": run.pk,
            "schedules/": schedule.pk,
            "firings/": firing.pk,
            "outcomes/": outcome.pk,
            "plans-in-force/": plan.pk,
            "sources/": source.name,
            "proposals/": proposal.pk,
            "audit/": "csv",
            "welcome/": "x",
        }
    )
