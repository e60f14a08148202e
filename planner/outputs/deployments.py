"""Read the stored names of deployments, which every export uses."""

from planner.models import DeploymentName


def names_kept() -> dict[str, str]:
    """Return the deployment names that users stored, by default name."""
    return dict(DeploymentName.objects.values_list("rule", "name"))
