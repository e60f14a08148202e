from typing import Any

from rest_framework import serializers

from planner.api.serializers.active_plans import TAKEN
from planner.api.serializers.options import chosen_values, field_of
from planner.api.serializers.strict_fields import FiniteField, StrictSerializer
from planner.domain.options import options_in
from planner.models import Proposal, ProposalEntry, ReviewRules
from planner.outputs.options import ExportOptions
from planner.selectors.review import proposal_entries, review_rules
from planner.services.approval import MAX_APPROVALS
from planner.services.approval import missing_approvals as missing

MOST_NUMBER = 2**31 - 1


class ProposalEntryItem(serializers.ModelSerializer[ProposalEntry]):
    by = serializers.CharField(
        source="by.username",
        default=None,
        allow_null=True,
        help_text="null: activated by a rule or the CLI.",
    )
    run = serializers.IntegerField(source="run_id", allow_null=True)
    anchor = serializers.DictField(
        help_text="Setting or chart point of a comment. {}: the whole proposal."
    )

    class Meta:
        model = ProposalEntry
        fields = ["id", "kind", "revision", "run", "by", "rule", "text", "anchor", "at"]


class ProposalItem(serializers.ModelSerializer[Proposal]):
    """A proposal as lists show it."""

    author = serializers.CharField(source="author.username", default=None, allow_null=True)
    run = serializers.IntegerField(source="run_id", allow_null=True)
    scenario = serializers.CharField(source="scenario.name", default=None, allow_null=True)
    version = serializers.IntegerField(source="version.number", default=None, allow_null=True)
    usd_30d = serializers.FloatField(
        allow_null=True, help_text="Cost of the plan, scaled to 30 days, USD."
    )

    class Meta:
        model = Proposal
        fields = ["id", "title", "state", "author", "rule", "run", "scenario", "version", "policy",
                  "revision", "usd_30d", "created_at", "updated_at", "decided_at"]  # fmt: skip


class ProposalDetail(ProposalItem):
    """A proposal with its activity."""

    base_run = serializers.IntegerField(
        source="base_run_id", allow_null=True, help_text="Run to compare with."
    )
    replay = serializers.IntegerField(
        source="replay_id",
        allow_null=True,
        help_text="Run that replays the active plan on the same traffic.",
    )
    outcome = serializers.IntegerField(
        source="outcome_id",
        allow_null=True,
        help_text="Run that simulates the proposed plan, if its own run did not.",
    )
    options = serializers.DictField(help_text="Export options with which the plan becomes active.")
    missing = serializers.SerializerMethodField(
        help_text="Unmet conditions for activation. Empty: none."
    )
    reviewers = serializers.SerializerMethodField()
    entries = serializers.SerializerMethodField()

    class Meta(ProposalItem.Meta):
        fields = [*ProposalItem.Meta.fields, "message", "options", "base_run", "replay", "outcome",
                  "missing", "reviewers", "entries"]  # fmt: skip

    def get_missing(self, proposal: Proposal) -> str:
        return missing(proposal) if proposal.is_undecided else ""

    def get_reviewers(self, proposal: Proposal) -> list[str]:
        return [reviewer.username for reviewer in proposal.reviewers.all()]

    def get_entries(self, proposal: Proposal) -> list[dict[str, Any]]:
        return [dict(ProposalEntryItem(entry).data) for entry in proposal_entries(proposal)]


class ProposeRequest(StrictSerializer):
    """The run with the proposed plan, how to apply it, and why."""

    run = serializers.IntegerField(min_value=1, max_value=MOST_NUMBER)
    title = serializers.CharField(max_length=160)
    message = serializers.CharField(required=False, default="", allow_blank=True, max_length=20_000)
    base_run = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=MOST_NUMBER,
        help_text="Run to compare with. Default: the active plan.",
    )
    reviewers = serializers.ListField(
        child=serializers.CharField(max_length=150), required=False, max_length=50
    )
    draft = serializers.BooleanField(required=False, default=False)

    def get_fields(self) -> dict[str, Any]:
        known = options_in(ExportOptions)
        return super().get_fields() | {name: field_of(known[name]) for name in TAKEN}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        options = {name: attrs.pop(name) for name in TAKEN if name in attrs}
        chosen_values(ExportOptions, options)
        return attrs | {"options": options}


class AmendRequest(StrictSerializer):
    run = serializers.IntegerField(min_value=1, max_value=MOST_NUMBER)
    message = serializers.CharField(required=False, default="", allow_blank=True, max_length=20_000)


class CommentRequest(StrictSerializer):
    text = serializers.CharField(max_length=20_000)
    anchor = serializers.DictField(
        child=serializers.CharField(max_length=300),
        required=False,
        help_text='{"setting": address}, or {"chart", "series", "time", "value"}. Default: the '
        "proposal.",
    )


class SayRequest(StrictSerializer):
    text = serializers.CharField(required=False, default="", allow_blank=True, max_length=20_000)


class ReviewersRequest(StrictSerializer):
    reviewers = serializers.ListField(
        child=serializers.CharField(max_length=150), min_length=1, max_length=50
    )


class ReviewRulesDetail(StrictSerializer):
    approvals = serializers.IntegerField(
        min_value=1,
        max_value=MAX_APPROVALS,
        help_text="Approvals required for activation.",
    )
    self_approval = serializers.BooleanField(help_text="Authors may approve.")
    admin_above_usd_30d = FiniteField(
        allow_null=True,
        min_value=0,
        max_value=1e14,
        help_text="Admin approval above this cost, USD per 30 days. null: never.",
    )
    required = serializers.BooleanField(  # type: ignore[assignment]
        help_text="Require a proposal for every plan."
    )

    @classmethod
    def now(cls) -> dict[str, Any]:
        return cls.of(review_rules())

    @classmethod
    def of(cls, rules: ReviewRules) -> dict[str, Any]:
        return dict(cls(rules).data)
