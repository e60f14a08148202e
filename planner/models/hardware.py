"""The user's own GPU types and models, beside the built-in catalogue."""

from django.conf import settings
from django.db import models

from planner.models.workspace import InWorkspace


class _Own(InWorkspace):
    """``facts`` are the fields of the core's type (planner.mappers); ``source`` is their origin."""

    name = models.CharField(max_length=80)
    facts = models.JSONField()
    kind = models.CharField(max_length=16, default="assumed")  # of provenance
    source = models.CharField(max_length=500)
    version = models.PositiveIntegerField(default=1)  # counts saved changes
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        abstract = True
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["workspace", "name"], name="%(class)s_name_once")
        ]

    def __str__(self) -> str:
        return self.name


class OwnGpu(_Own):
    """``facts``: simulation.performance.specs.GpuSpec."""


class OwnModel(_Own):
    """``facts``: simulation.performance.specs.ModelSpec, its shape where it is known."""


class PriceList(_Own):
    """``facts``: {"prices": rows of planner.catalogue.price_lists.OwnPrice}."""
