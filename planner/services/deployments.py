"""Names of deployments, changed."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction

from planner.errors import PlannerError
from planner.exports.names import checked_name
from planner.models import DeploymentName, User
from planner.services.access import check_may_plan
from planner.services.audit import record

MOST = 5000  # kept


def names_keep(*, names: Mapping[str, str], user: User | None) -> None:
    """Keep those of ``names``; an empty one, or that of the rule, is kept no longer."""
    check_may_plan(user)
    for rule, name in names.items():
        try:
            checked_name(rule)
            checked_name(name or rule)
        except ValueError as refused:
            raise PlannerError(f"names: {refused}.") from None
    with transaction.atomic():
        for rule, name in names.items():
            if name in ("", rule):
                DeploymentName.objects.filter(rule=rule).delete()
            else:
                DeploymentName.objects.update_or_create(
                    rule=rule, defaults={"name": name, "by": user}
                )
        if DeploymentName.objects.count() > MOST:
            raise PlannerError(f"names: at most {MOST:,} are kept; remove some first.")
        record("deployment-names.changed", by=user, names=dict(names))
