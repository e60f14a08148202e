"""Add the kind of run that lets models share GPUs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("planner", "0044_time_zones")]

    operations = [
        migrations.AlterField(
            model_name="run",
            name="kind",
            field=models.CharField(
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
    ]
