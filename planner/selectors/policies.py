"""Read the policies of a stored result: their order, and the default one."""

from typing import Any

from planner.policies.registry import plan_policy, traits_of


def policies_in_order(result: dict[str, Any]) -> dict[str, Any]:
    """Return the figures by policy in the scenario's order, as PostgreSQL keeps no key order."""
    policies: dict[str, Any] = result.get("policies") or {}
    order = [*(result.get("baselines") or []), *policies]
    return {name: policies[name] for name in dict.fromkeys(order) if name in policies}


def default_policy(result: dict[str, Any]) -> str:
    """Return the recommended policy of a result.

    In a result without one, it is the policy reported as the plan, else the best deployable one.
    """
    policies = policies_in_order(result)
    recommended = (result.get("recommended") or {}).get("policy")
    if recommended in policies:
        return str(recommended)
    ranking = [name for name in result.get("ranking") or [] if name in policies]
    best_first = dict.fromkeys([*ranking, *policies])
    deployable = [name for name in best_first if not traits_of(name).reads_future]
    in_comparison = [name for name in best_first if (policies[name] or {}).get("asked", True)]
    return plan_policy(in_comparison) or next(iter([*deployable, *best_first]), "")
