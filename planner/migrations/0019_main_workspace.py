"""One workspace, with all rows that there are and everybody in the role they had."""

from django.db import migrations

from planner.models.workspace import MAIN

ROWS = (
    "ApiToken",
    "Calibration",
    "DeploymentName",
    "OwnGpu",
    "OwnModel",
    "PlanInForce",
    "PriceList",
    "Profile",
    "ProfileVersion",
    "Run",
    "Scenario",
    "Sweep",
    "Trace",
)


def gathered(apps, schema_editor):
    main, _ = apps.get_model("planner", "Workspace").objects.get_or_create(
        slug=MAIN, defaults={"name": "Main"}
    )
    for name in ROWS:
        apps.get_model("planner", name).objects.filter(workspace=None).update(workspace=main)
    members = apps.get_model("planner", "Membership").objects
    for pk, role in apps.get_model("planner", "User").objects.values_list("pk", "role"):
        members.get_or_create(user_id=pk, workspace=main, defaults={"role": role})


class Migration(migrations.Migration):
    dependencies = [("planner", "0018_workspaces")]

    operations = [migrations.RunPython(gathered, migrations.RunPython.noop)]
