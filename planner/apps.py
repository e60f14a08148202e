"""The one Django app."""

from importlib import import_module

from django.apps import AppConfig


class PlannerConfig(AppConfig):
    name = "planner"
    label = "planner"
    verbose_name = "Headroom"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        import_module("planner.services.deeds")  # by its name: it knows the rows, which know us
