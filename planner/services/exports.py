"""Export runs as files, with the names of deployments that users choose."""

from collections.abc import Mapping
from datetime import datetime

from django.db import transaction

from planner.errors import PlannerError
from planner.models import DeploymentName, Run, User
from planner.outputs.files import File, export_file
from planner.outputs.object_names import checked_name
from planner.outputs.options import ExportOptions
from planner.services.access import check_may_plan
from planner.services.audit import record

MAX_NAMES = 5000  # deployment names that a workspace stores at most


def run_export(
    *, run: Run, to: str, options: ExportOptions, now: datetime, by: User | None
) -> File:
    """Return the run as a file of format ``to``, and record the export in the audit log.

    ``by`` None: the command line. Raises PlannerError if the format is unknown, or not available
    for this kind of run.
    """
    file = export_file(run=run, to=to, options=options, now=now)
    record("run.exported", run, by=by, to=to, file=file.name)
    return file


def deployment_names_save(*, names: Mapping[str, str], user: User | None) -> None:
    """Store the names that the user wants for deployments in exports, by their default names.

    An empty name, or the default name itself, removes the stored one.
    """
    check_may_plan(user)
    for default_name, name in names.items():
        try:
            checked_name(default_name)
            checked_name(name or default_name)
        except ValueError as error:
            raise PlannerError(f"names: {error}.") from None
    with transaction.atomic():
        for default_name, name in names.items():
            if name in ("", default_name):
                DeploymentName.objects.filter(rule=default_name).delete()
            else:
                DeploymentName.objects.update_or_create(
                    rule=default_name, defaults={"name": name, "by": user}
                )
        if DeploymentName.objects.count() > MAX_NAMES:
            raise PlannerError(f"names: at most {MAX_NAMES:,} are kept. Remove some first.")
        record("deployment-names.changed", by=user, names=dict(names))
