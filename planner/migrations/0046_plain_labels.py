"""Give plans one label, and stored Pareto fronts the unit of carbon that pages have."""

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
    dependencies = [("planner", "0045_shared_gpus")]

    operations = [
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
