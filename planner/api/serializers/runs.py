from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from planner.api.serializers.fields import LinkField, RelatedText, TypedField, Values
from planner.api.serializers.options import OptionsSerializer, chosen_values
from planner.domain.options import options_in
from planner.models import Run
from planner.outputs.files import FORMATS
from planner.outputs.options import ExportOptions
from planner.selectors.runs import run_preview
from planner.services.run_queue import QueuePosition, wait_of


class RunLinks(serializers.Serializer[Any]):
    self = LinkField("run", "run_id")
    cancel = LinkField("run-cancel", "run_id")
    results = LinkField("run-results", "run_id")
    tables = LinkField("run-tables", "run_id")
    scenario = LinkField("scenario", "scenario", "scenario_id", allow_null=True)
    trace = LinkField("trace", "name", "trace.name", allow_null=True)


class RunItem(serializers.ModelSerializer[Run]):
    """A run as lists show it."""

    scenario = RelatedText("scenario.name")
    trace = RelatedText("trace.name")
    owner = RelatedText("owner.username")
    progress = serializers.FloatField(help_text="Progress, 0 to 1.")
    stage = serializers.CharField(help_text="Current step.")
    problem = serializers.CharField(help_text="Reason of a failure. Empty: none.")
    links = RunLinks(source="*", read_only=True)

    class Meta:
        model = Run
        fields = [
            "id", "kind", "state", "name", "scenario", "trace", "owner", "progress", "stage",
            "problem", "cancel_requested", "created_at", "started_at", "finished_at", "links",
        ]  # fmt: skip


class RunDetail(RunItem):
    waits = TypedField(
        QueuePosition | None,
        lambda run: wait_of(run) if run.state == Run.State.PENDING else None,
        help_text="Queue ahead of the run. null: it has started.",
    )
    options = serializers.DictField(help_text="Options at the start.")
    resolved = serializers.DictField(
        help_text="Own GPUs, own models and profile versions that the scenario uses."
    )
    preview = TypedField(
        Mapping[str, Any] | None,
        run_preview,
        help_text="Answer so far of a comparison that is going on, else null.",
    )
    log = serializers.CharField(help_text="Log lines.")

    class Meta(RunItem.Meta):
        fields = [*RunItem.Meta.fields, "waits", "options", "resolved", "seed", "code_version",
                  "attempts", "preview", "log"]  # fmt: skip


class TableNames(serializers.Serializer[Any]):
    tables = serializers.ListField(child=serializers.CharField())
    links = serializers.DictField(
        child=serializers.URLField(), help_text="Addresses of the tables, by name."
    )


class TableRows(serializers.Serializer[Any]):
    table = serializers.CharField()
    columns = serializers.ListField(child=serializers.CharField())
    total = serializers.IntegerField(help_text="Number of rows of the table.")
    offset = serializers.IntegerField()
    limit = serializers.IntegerField()
    rows = serializers.ListField(child=serializers.DictField())


class TableRowsQuery(serializers.Serializer[Any]):
    """The rows of a table."""

    offset = serializers.IntegerField(min_value=0, max_value=10**12, default=0)
    limit = serializers.IntegerField(
        min_value=1,
        max_value=100_000,
        required=False,
        help_text="Number of rows. Default: 1,000 as JSON, all as CSV.",
    )


class PoolQuery(serializers.Serializer[Any]):
    """The part of a provisioning run; default: the first."""

    pool = serializers.CharField(
        max_length=300,
        required=False,
        help_text="Pool as `model / region / gpu`, with the names of the result.",
    )
    phase = serializers.ChoiceField(("prefill", "decode"), required=False)


class ExportQuery(OptionsSerializer):
    """A format and its options."""

    declared = options_in(ExportOptions)
    to = serializers.ChoiceField(
        [*FORMATS], help_text="; ".join(f"{name}: {form.label}" for name, form in FORMATS.items())
    )

    def validate(self, attrs: Values) -> Values:
        """Return the format, and separately the options of the export."""
        options = {name: value for name, value in attrs.items() if name != "to"}
        return {"to": attrs["to"], "options": chosen_values(ExportOptions, options)}


class SavingsQuery(serializers.Serializer[Any]):
    baseline = serializers.CharField(
        required=False, max_length=80, help_text="Policy. Default: the baseline of the result."
    )


class Problem(serializers.Serializer[Any]):
    """A problem document (RFC 9457)."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField(help_text="The problem and the remedy.")
    instance = serializers.CharField(help_text="Address of the request.")
    errors = serializers.ListField(  # type: ignore[assignment]  # a field, not the property
        child=serializers.DictField(child=serializers.CharField()),
        required=False,
        help_text="Invalid fields, each with `field` and `message`.",
    )
