"""Which plan is in force, and what it asks for at a moment: what /metrics says, so that a cluster's
autoscaler follows it by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

from planner.exports.manifests.common import METRIC
from planner.exports.names import label_of
from planner.exports.patterns import CYCLES, UNKNOWN, Repeat, Step, folded, minute_of
from planner.models import PlanInForce

IN_FORCE, COVERED = "headroom_plan_in_force", "headroom_plan_covers_now"


@dataclass(frozen=True, slots=True)
class Desired:
    """Replicas of a pool now; None where the plan says nothing of this moment."""

    pool: str
    region: str
    model: str
    gpu: str
    role: str
    replicas: int | None


def plan_in_force() -> PlanInForce | None:
    return PlanInForce.objects.select_related("by").filter(until=None).first()


def desired(plan: PlanInForce, now: datetime) -> list[Desired]:
    """What each pool is to have. Of a pattern the least it has holds where it says nothing; of
    dates nothing is said outside them, and whoever follows stays as they are."""
    local = now.astimezone(ZoneInfo(plan.zone)).replace(tzinfo=None)
    return [
        Desired(
            pool["name"],
            pool["region"],
            pool["model"],
            pool["gpu"],
            pool["role"],
            _at(steps_of(pool), cast(Repeat, plan.repeat), local),
        )
        for pool in plan.pools
    ]


def steps_of(pool: Mapping[str, Any]) -> list[Step]:
    """Of a pool of a plan as it was frozen."""
    return [_step(one) for one in pool["steps"]]


def _step(one: Sequence[str | int]) -> Step:
    begins, ends, replicas = one
    return Step(
        datetime.fromisoformat(str(begins)), datetime.fromisoformat(str(ends)), int(replicas)
    )


def _at(steps: Sequence[Step], repeat: Repeat, local: datetime) -> int | None:
    if repeat == "once":
        return next((s.replicas for s in steps if s.begins <= local < s.ends), None)
    counts = folded(steps, repeat)
    now = int(counts[minute_of(local) % CYCLES[repeat]])
    return int(counts[counts != UNKNOWN].min()) if now == UNKNOWN else now


def exposition(plan: PlanInForce | None, now: datetime) -> str:
    """The text that Prometheus scrapes (exposition format 0.0.4)."""
    return "".join(f"{line}\n" for line in _lines(plan, now))


def _lines(plan: PlanInForce | None, now: datetime) -> Iterator[str]:
    yield from _family(IN_FORCE, "1 with the plan in force; 0 where there is none.")
    if plan is None:
        yield f"{IN_FORCE} 0"
        return
    of = {"run": str(plan.number), "policy": plan.policy}
    yield f"{IN_FORCE}{_labels({**of, 'scenario': plan.scenario})} 1"
    found = desired(plan, now)
    said = [one for one in found if one.replicas is not None]
    yield from _family(COVERED, "Whether the plan in force says anything of this moment.")
    yield f"{COVERED}{_labels(of)} {int(bool(said))}"
    yield from _family(METRIC, "Replicas that the plan in force asks for now.")
    for one in said:
        labels = {
            "pool": one.pool,
            "region": label_of(one.region),
            "model": one.model,
            "gpu": one.gpu,
            "role": one.role,
            "run": str(plan.number),
        }
        yield f"{METRIC}{_labels(labels)} {one.replicas}"


def _family(name: str, told: str) -> Iterator[str]:
    yield f"# HELP {name} {told}"
    yield f"# TYPE {name} gauge"


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
