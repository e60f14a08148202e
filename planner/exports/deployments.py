"""Names of deployments, kept once for every export."""

from __future__ import annotations

from planner.models import DeploymentName


def names_kept() -> dict[str, str]:
    """By the name of the rule."""
    return dict(DeploymentName.objects.values_list("rule", "name"))
