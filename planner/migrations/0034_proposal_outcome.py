"""What is proposed is replayed too where its run planned and replayed nothing."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("planner", "0033_in_force_versions")]

    operations = [
        migrations.AddField(
            model_name="proposal",
            name="outcome",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="planner.run",
            ),
        ),
    ]
