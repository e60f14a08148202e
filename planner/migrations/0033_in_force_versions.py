"""Plans that were in force are versions: said why, and of which earlier one."""

from django.db import migrations, models
from django.db.models import deletion


class Migration(migrations.Migration):
    dependencies = [
        ("planner", "0032_run_reason"),
    ]

    operations = [
        migrations.AddField(
            model_name="planinforce",
            name="message",
            field=models.CharField(blank=True, db_default="", default="", max_length=500),
        ),
        migrations.AddField(
            model_name="planinforce",
            name="origin",
            field=models.ForeignKey(
                null=True,
                on_delete=deletion.SET_NULL,
                related_name="+",
                to="planner.planinforce",
            ),
        ),
        migrations.AlterField(
            model_name="delivery",
            name="event",
            field=models.CharField(
                choices=[
                    ("proposal.opened", "A plan is proposed"),
                    ("review.requested", "A review is asked of me, or of anybody"),
                    ("mention", "I am mentioned"),
                    ("proposal.decided", "A proposal is approved, rejected or to be changed"),
                    ("plan.in-force", "Another plan is in force, or none any more"),
                    ("schedule.failed", "A scheduled plan failed or was missed"),
                    ("source.problem", "A live source has a problem"),
                    ("plan.drift", "What comes drifts from what was planned"),
                    ("digest", "The weekly digest"),
                    ("test", "A test"),
                ],
                max_length=32,
            ),
        ),
    ]
