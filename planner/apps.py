"""The one Django app."""

from django.apps import AppConfig


class PlannerConfig(AppConfig):
    name = "planner"
    label = "planner"
    verbose_name = "Headroom"
    default_auto_field = "django.db.models.BigAutoField"
