from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("planner", "0031_in_force_label"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="reason",
            field=models.CharField(blank=True, db_default="", default="", max_length=60),
        ),
    ]
