"""Store the user's own GPU types and models, which extend the built-in catalogue."""

from django.db import models

from planner.models.workspace import Owned


class _OwnRow(Owned):
    """A row with a simulator type's fields in ``facts`` (``hardware_rows``) and a ``source``."""

    name = models.CharField(max_length=80)
    facts = models.JSONField()
    kind = models.CharField(max_length=16, default="assumed")  # kind of provenance
    source = models.CharField(max_length=500)
    version = models.PositiveIntegerField(default=1)  # number of saved changes
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


class OwnGpu(_OwnRow):
    """A GPU type; ``facts`` has the fields of simulation.performance.specs.GpuSpec."""


class OwnModel(_OwnRow):
    """A model; ``facts`` has the fields of simulation.performance.specs.ModelSpec.

    The shape is included if it is known.
    """


class PriceList(_OwnRow):
    """A price list; ``facts`` is {"prices": rows of catalogue.price_lists.OwnPrice}."""
