"""Configure the only Django app of the product."""

from importlib import import_module

from django.apps import AppConfig


class PlannerConfig(AppConfig):
    name = "planner"
    label = "planner"
    verbose_name = "Headroom"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # imported late: it imports the models, which need this app
        import_module("planner.services.audit_signals")
