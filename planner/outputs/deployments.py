"""Read the stored names of deployments, which every export uses."""

from __future__ import annotations

from planner.models import DeploymentName


def names_kept() -> dict[str, str]:
    """Return the stored name of each deployment by its default name."""
    return dict(DeploymentName.objects.values_list("rule", "name"))
