"""Add time zones, the kind of run that lets models share GPUs, and plain labels and units."""

import json
import re

from django.db import migrations, models


def name_equivalents(apps, schema_editor):
    """Write kg CO2e in results of Pareto fronts that were stored with kg CO2."""
    runs = apps.get_model("planner", "Run")._base_manager.filter(kind="pareto")
    for run in runs.only("result").iterator(chunk_size=100):
        stored = json.dumps(run.result)
        if (renamed := re.sub(r"\bkg CO2\b", "kg CO2e", stored)) != stored:
            runs.filter(pk=run.pk).update(result=json.loads(renamed))


class Migration(migrations.Migration):
    replaces = [
        ("planner", "0044_time_zones"),
        ("planner", "0045_shared_gpus"),
        ("planner", "0046_plain_labels"),
    ]
    dependencies = [("planner", "0043_plain_names")]

    operations = [
        migrations.AddField(
            "user",
            "time_zone",
            models.CharField(blank=True, db_default="", default="", max_length=64),
        ),
        migrations.AddField(
            "workspace",
            "time_zone",
            models.CharField(db_default="UTC", default="UTC", max_length=64),
        ),
        migrations.AlterField(
            "run",
            "kind",
            models.CharField(
                choices=[
                    ("ingest", "Ingest"),
                    ("forecast", "Forecast"),
                    ("plan", "Plan without simulation"),
                    ("simulate", "Simulate"),
                    ("compare", "Plan and compare"),
                    ("provision", "Operator-level provisioning"),
                    ("size", "Replica capacity"),
                    ("pd-ratio", "Prefill-decode ratio"),
                    ("pareto", "Trade-off"),
                    ("place", "Network placement"),
                    ("share", "Shared GPUs"),
                    ("outlook", "Cost by month"),
                    ("backtest", "Backtest of forecasters"),
                ],
                max_length=16,
            ),
        ),
        migrations.AlterField(
            "schedule",
            "kind",
            models.CharField(
                choices=[("plan", "Plan without simulation"), ("compare", "Plan and compare")],
                default="plan",
                max_length=16,
            ),
        ),
        migrations.RunPython(name_equivalents, migrations.RunPython.noop),
    ]
