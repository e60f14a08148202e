"""Set the time zone in which people read moments."""

from planner.models import User
from planner.models.workspace import current_workspace
from planner.services.access import check_may_administer
from planner.services.audit import record
from planner.services.cron import zone_of


def time_zone_set(*, by: User, name: str, workspace: bool = False) -> None:
    """Set the time zone of a person or, with ``workspace``, the default of the workspace.

    ``name`` is an IANA name. An empty name removes the person's own setting.
    """
    if workspace:
        check_may_administer(by)
    changed = current_workspace() if workspace else by
    changed.time_zone = zone_of(name).key if name or workspace else ""
    changed.save(update_fields=["time_zone"])
    if workspace:
        record("workspace.time-zone", changed, by=by, zone=changed.time_zone)
