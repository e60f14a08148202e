"""Terraform: one variable, ``headroom_plan``, as *.tfvars.json, which has no comments."""

from __future__ import annotations

from collections import Counter
from typing import Any

from planner.exports.manifests.common import Document, Export, covers, heading, unguarded
from planner.exports.plans import Plan, Pool

VARIABLE = "headroom_plan"


def documents(export: Export) -> list[Document]:
    plan = export.plan
    names = Counter(pool.name for pool in plan.pools)
    keys = [
        pool.name if names[pool.name] == 1 else f"{pool.region}/{pool.name}" for pool in plan.pools
    ]
    body = {
        VARIABLE: {
            "run": plan.run,
            "scenario": plan.scenario,
            "policy": plan.policy,
            "covers": covers(plan),
            "timezone": plan.zone,
            "notes": [line for line in heading(export, *unguarded(plan)) if line],
            "pools": {key: _pool(plan, pool) for key, pool in zip(keys, plan.pools, strict=True)},
        }
    }
    return [Document(body, "terraform")]


def _pool(plan: Plan, pool: Pool) -> dict[str, Any]:
    return {
        "model": pool.model,
        "region": pool.region,
        "gpu": pool.gpu,
        "gpus_per_replica": pool.gpus,
        "role": pool.role,
        "market": pool.market,
        "min_replicas": pool.least,
        "max_replicas": pool.most,
        "replicas": pool.least if plan.rule else pool.steps[0].replicas,
        "schedule": [
            {"begins": f"{step.begins:%Y-%m-%dT%H:%M:%S}", "ends": f"{step.ends:%Y-%m-%dT%H:%M:%S}",
             "replicas": step.replicas}
            for step in pool.steps
        ],
    }  # fmt: skip
