from django.db import migrations, models

NUMBERED = (
    "calibration", "outcome", "planinforce", "proposal", "run", "schedule", "sweep",
)  # fmt: skip


def count(apps, schema_editor):
    """Go on from the highest number that was given, also to a row that was removed since.

    SQLite knows it. PostgreSQL knows the highest number that was reserved, which a crash moves on
    by 32, so there it is the highest number of a row.
    """
    connection = schema_editor.connection
    counters = apps.get_model("planner", "Counter").objects
    for kind in NUMBERED:
        model = apps.get_model("planner", kind)
        last = model._base_manager.aggregate(last=models.Max("pk"))["last"] or 0
        if kind == "run":  # plans remember the runs that they are from
            plans = apps.get_model("planner", "planinforce")._base_manager
            last = max(last, plans.aggregate(last=models.Max("number"))["last"] or 0)
        if connection.vendor == "sqlite":
            with connection.cursor() as cursor:
                table = model._meta.db_table
                cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = %s", [table])
                last = max(last, *(cursor.fetchone() or [0]))
        if last:
            counters.create(kind=kind, last=last)


class Migration(migrations.Migration):
    dependencies = [("planner", "0038_audit_without_hashes")]

    operations = [
        migrations.CreateModel(
            name="Counter",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(max_length=40, unique=True)),
                ("last", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.RunPython(count, migrations.RunPython.noop),
    ]
