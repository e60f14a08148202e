"""Tokens are kept as hashes, with a name and an end; those that there are go on for a year."""

import hashlib
from datetime import timedelta

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.utils import timezone


def hashed(apps, schema_editor):
    old, new = apps.get_model("authtoken", "Token"), apps.get_model("planner", "ApiToken")
    ends = timezone.now() + timedelta(days=366)
    for token in old.objects.all():
        sha256 = hashlib.sha256(token.key.encode()).hexdigest()
        new.objects.create(user_id=token.user_id, name="earlier", sha256=sha256, expires_at=ends)
    old.objects.all().delete()


class Migration(migrations.Migration):
    dependencies = [
        ("planner", "0012_price_lists"),
        ("authtoken", "0004_alter_tokenproxy_options"),
    ]

    operations = [
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=60)),
                (
                    "scope",
                    models.CharField(
                        choices=[("all", "All that I may do"), ("read", "Reading alone")],
                        default="all",
                        max_length=8,
                    ),
                ),
                ("sha256", models.CharField(max_length=64, unique=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField()),
                ("last_used_at", models.DateTimeField(blank=True, null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="api_tokens",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={"ordering": ["-created_at", "-pk"]},
        ),
        migrations.RunPython(hashed, migrations.RunPython.noop),
    ]
