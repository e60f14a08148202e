"""Plans by hand, to be exported."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from planner.outputs.manifests.common import Export
from planner.outputs.options import ExportOptions
from planner.outputs.plans import Plan, Rule
from planner.outputs.pools import Facts, Pool
from planner.outputs.weekly_pattern import Repeat, Step

MONDAY = datetime(2026, 5, 18)
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


def steps_of(minutes: Sequence[tuple[int, int]], begins: datetime = MONDAY) -> tuple[Step, ...]:
    """Stretches of (minutes, replicas), one after the other."""
    steps = []
    for length, replicas in minutes:
        ends = begins + timedelta(minutes=length)
        steps.append(Step(begins, ends, replicas))
        begins = ends
    return tuple(steps)


def pool_of(
    steps: tuple[Step, ...],
    name: str = "chat",
    role: str = "mixed",
    region: str = "us-east",
    gpus: int = 2,
) -> Pool:
    counts = [step.replicas for step in steps] or [1, 5]
    return Pool(
        name=name,
        default_name=name,
        model="llama-3.1-8b",
        region=region,
        gpu="H100-SXM",
        gpus=gpus,
        role=role,
        market="owned",
        arrangement=f"{gpus} x H100-SXM",
        steps=steps,
        min_replicas=min(counts),
        max_replicas=max(counts),
        facts=Facts(gpus_per_node=8, usd_per_hour=6.5, startup_s=600),
    )


def plan_of(*pools: Pool, repeat: Repeat = "weekly", rule: Rule | None = None) -> Plan:
    steps = pools[0].steps
    return Plan(
        run=7,
        scenario="A plan",
        policy="lt-i",
        label="Planned",
        computed=NOW,
        begins=(steps[0].begins if steps else MONDAY).replace(tzinfo=UTC),
        ends=(steps[-1].ends if steps else MONDAY + timedelta(days=1)).replace(tzinfo=UTC),
        clock="utc",
        repeat=repeat,
        zone="UTC",
        pools=pools,
        rule=rule,
        notes=(),
    )


def asked(plan: Plan, **options: object) -> Export:
    return Export(plan, ExportOptions.model_validate(options), NOW)
