"""Store performance profiles that were fitted or imported here, and the files behind them.

The user's own GPU types and models extend the built-in catalogue.
"""

from django.conf import settings
from django.db import models

from planner.models.counter import Numbered
from planner.models.workspace import InWorkspace, Owned


class _OwnRow(Owned):
    """Facts that a user states about a GPU type, a model or prices, with their ``source``."""

    name = models.CharField(max_length=80)
    facts = models.JSONField()  # see planner.selectors.hardware_rows
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


class OwnGpu(_OwnRow):
    """A GPU type; ``facts`` has the fields of simulation.performance.specs.GpuSpec."""


class OwnModel(_OwnRow):
    """A model; ``facts`` has the fields of simulation.performance.specs.ModelSpec."""


class PriceList(_OwnRow):
    """A price list; ``facts`` is {"prices": rows of catalogue.price_lists.OwnPrice}."""


class _Idempotent(InWorkspace):
    """A row that a client creates with an idempotency key, so that a retry adds no second row."""

    idempotency_key = models.CharField(max_length=120, blank=True)
    # hash of the request under the key
    request_sha256 = models.CharField(max_length=64, blank=True)

    class Meta:
        abstract = True


class Calibration(Numbered, Owned, _Idempotent):
    """An uploaded file of measurements; ``store`` has its rows as Parquet."""

    class Kind(models.TextChoices):
        BENCHMARK = "benchmark", "Benchmark rows"
        KERNELS = "kernels", "Measured kernels"

    name = models.CharField(max_length=120)  # name of the file, as people read it
    kind = models.CharField(max_length=16, choices=Kind.choices)
    format = models.CharField(max_length=40, blank=True)
    file_name = models.CharField(max_length=255)
    sha256 = models.CharField(max_length=64, db_index=True)
    bytes = models.BigIntegerField()
    rows = models.PositiveIntegerField(default=0)
    report = models.JSONField(default=dict, blank=True)  # what was read, and what was not and why
    source = models.CharField(max_length=500, blank=True)  # where the measurements come from
    store = models.CharField(max_length=255, blank=True)  # folder, relative to the data directory
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["workspace", "owner", "idempotency_key"],
                condition=~models.Q(idempotency_key=""),
                name="calibration_once_per_key",
            )
        ]


class Profile(Owned):
    """A named profile: the speed of one model on one GPU type and arrangement of GPUs.

    Its values are in its versions. The newest applies, unless a scenario names another.
    """

    name = models.CharField(max_length=80)
    model = models.CharField(max_length=80)
    gpu = models.CharField(max_length=80)
    tp = models.PositiveIntegerField(default=1)  # GPUs of one replica
    arrangement = models.JSONField(default=dict, blank=True)  # specs.Arrangement
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["workspace", "name"], name="profile_name_once")
        ]


class ProfileVersion(_Idempotent):
    """The result of one fit of a profile; never changed after its creation."""

    class Kind(models.TextChoices):
        LINEAR = "linear", "Linear"
        TABLE = "table", "Table"
        OPERATOR = "operator", "Operator"
        ROOFLINE = "roofline", "Roofline"

    profile = models.ForeignKey(Profile, on_delete=models.CASCADE, related_name="versions")
    version = models.PositiveIntegerField()
    kind = models.CharField(max_length=16, choices=Kind.choices)
    limits = models.JSONField()  # max_batch, max_batch_tokens, kv_capacity_tokens
    parameters = models.JSONField(default=dict, blank=True)  # value, low, high, unit by name
    curve = models.BinaryField()  # simulation.performance.curves.Curve.values, npz
    checks = models.JSONField(default=list, blank=True)  # simulation.performance.profile.Check
    # How it was fitted: rows used, rows ignored, notes.
    report = models.JSONField(default=dict, blank=True)
    provenance = models.CharField(max_length=16, default="measured")
    source = models.CharField(max_length=500, blank=True)
    store = models.CharField(max_length=255, blank=True)  # folder of its table of residuals
    calibration = models.ForeignKey(
        Calibration, null=True, blank=True, on_delete=models.SET_NULL, related_name="versions"
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["profile", "-version"]
        constraints = [
            models.UniqueConstraint(fields=["profile", "version"], name="profile_version_once"),
            models.UniqueConstraint(
                fields=["workspace", "created_by", "idempotency_key"],
                condition=~models.Q(idempotency_key=""),
                name="profile_version_once_per_key",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.profile.name}, version {self.version}"
