"""Change the names of deployments."""

from collections.abc import Mapping

from django.db import transaction

from planner.errors import PlannerError
from planner.models import DeploymentName, User
from planner.outputs.object_names import checked_name
from planner.services.access import check_may_plan
from planner.services.audit import record

MAX_NAMES = 5000  # most names that a workspace stores


def deployment_names_save(*, names: Mapping[str, str], user: User | None) -> None:
    """Store names of deployments, by default name.

    An empty name, or the default name itself, removes the stored one.
    """
    check_may_plan(user)
    for rule, name in names.items():
        try:
            checked_name(rule)
            checked_name(name or rule)
        except ValueError as error:
            raise PlannerError(f"names: {error}.") from None
    with transaction.atomic():
        for rule, name in names.items():
            if name in ("", rule):
                DeploymentName.objects.filter(rule=rule).delete()
            else:
                DeploymentName.objects.update_or_create(
                    rule=rule, defaults={"name": name, "by": user}
                )
        if DeploymentName.objects.count() > MAX_NAMES:
            raise PlannerError(f"names: at most {MAX_NAMES:,} are kept. Remove some first.")
        record("deployment-names.changed", by=user, names=dict(names))
