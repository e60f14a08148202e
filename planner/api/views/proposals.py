"""Serve proposals and their review."""

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from planner.api.base import ApiView, valid
from planner.api.filters import ListView, ProposalFilter, StrictFilter, StrictOrdering, lists
from planner.api.schema import LOCATION, operation
from planner.api.serializers.fields import (
    FiniteField,
    OptionalText,
    RelatedText,
    RowNumber,
    StrictSerializer,
    TypedField,
    Values,
)
from planner.api.serializers.options import OptionsSerializer, chosen_values
from planner.api.views.active_plans import PLAN_OPTIONS
from planner.domain.serialise import as_json
from planner.errors import NotFound
from planner.models import Proposal, ProposalEntry
from planner.outputs.options import ExportOptions
from planner.outputs.proposal_changes import ProposalComparison, proposed_of
from planner.selectors.people import person_get
from planner.selectors.review import proposal_entries, proposal_get, proposals_list, review_rules
from planner.selectors.runs import run_get
from planner.services import proposals
from planner.services.approval import MAX_APPROVALS, rules_change
from planner.services.approval import missing_approvals as missing


class ProposalEntryItem(serializers.ModelSerializer[ProposalEntry]):
    by = RelatedText("by.username", help_text="null: activated by a rule or the CLI.")
    run = serializers.IntegerField(source="run_id", allow_null=True)
    anchor = serializers.DictField(
        help_text="Setting or chart point of a comment. {}: the whole proposal."
    )

    class Meta:
        model = ProposalEntry
        fields = ["id", "kind", "revision", "run", "by", "rule", "text", "anchor", "at"]


class ProposalItem(serializers.ModelSerializer[Proposal]):
    """A proposal as lists show it."""

    author = RelatedText("author.username")
    run = serializers.IntegerField(source="run_id", allow_null=True)
    scenario = RelatedText("scenario.name")
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
    missing = TypedField(
        str,
        lambda proposal: missing(proposal) if proposal.is_undecided else "",
        help_text="Unmet conditions for activation. Empty: none.",
    )
    reviewers = TypedField(
        list[str], lambda proposal: [person.username for person in proposal.reviewers.all()]
    )
    entries = serializers.SerializerMethodField()

    class Meta(ProposalItem.Meta):
        fields = [*ProposalItem.Meta.fields, "message", "options", "base_run", "replay", "outcome",
                  "missing", "reviewers", "entries"]  # fmt: skip

    @extend_schema_field(ProposalEntryItem(many=True))
    def get_entries(self, proposal: Proposal) -> list[Values]:
        return list(ProposalEntryItem(proposal_entries(proposal), many=True).data)


class ProposeRequest(OptionsSerializer):
    """The run with the proposed plan, how to apply it, and why."""

    declared = PLAN_OPTIONS
    run = RowNumber()
    title = serializers.CharField(max_length=160)
    message = OptionalText(max_length=20_000)
    base_run = RowNumber(
        required=False, allow_null=True, help_text="Run to compare with. Default: the active plan."
    )
    reviewers = serializers.ListField(
        child=serializers.CharField(max_length=150), required=False, max_length=50
    )
    draft = serializers.BooleanField(required=False, default=False)

    def validate(self, attrs: Values) -> Values:
        """Return the values; those of PLAN_OPTIONS are validated and grouped under ``options``."""
        options = {name: attrs.pop(name) for name in PLAN_OPTIONS if name in attrs}
        chosen_values(ExportOptions, options)
        return attrs | {"options": options}


class AmendRequest(StrictSerializer):
    run = RowNumber()
    message = OptionalText(max_length=20_000)


class CommentRequest(StrictSerializer):
    text = serializers.CharField(max_length=20_000)
    anchor = serializers.DictField(
        child=serializers.CharField(max_length=300),
        required=False,
        help_text='{"setting": address}, or {"chart", "series", "time", "value"}. Default: the '
        "proposal.",
    )


class DecisionRequest(StrictSerializer):
    text = OptionalText(max_length=20_000)


class ReviewersRequest(StrictSerializer):
    reviewers = serializers.ListField(
        child=serializers.CharField(max_length=150), min_length=1, max_length=50
    )


class ReviewRulesDetail(StrictSerializer):
    approvals = serializers.IntegerField(
        min_value=1, max_value=MAX_APPROVALS, help_text="Approvals required for activation."
    )
    self_approval = serializers.BooleanField(help_text="Authors may approve their own proposals.")
    admin_above_usd_30d = FiniteField(
        allow_null=True,
        min_value=0,
        max_value=1e14,
        help_text="Admin approval above this cost, USD per 30 days. null: never.",
    )
    required = serializers.BooleanField(  # type: ignore[assignment]
        help_text="Require a proposal for every plan."
    )


DECIDED = {200: ProposalDetail}


@lists(ProposalItem, rows=proposals_list)
class ProposalListView(ListView[Proposal]):
    """List proposals, newest first."""

    filter_backends = [StrictFilter, StrictOrdering]
    filterset_class = ProposalFilter
    ordering_fields = ["created_at", "updated_at", "decided_at"]

    @operation(
        {201: ProposalDetail}, request=ProposeRequest, parameters=[LOCATION],
        examples={"Every week like it": {"run": 7, "title": "Week 21", "repeat": "weekly"}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Propose a finished plan or comparison.

        It is compared with the active plan. If the active plan was not replayed on the same
        traffic, a run that replays it is started (`replay`).
        """
        sent = valid(ProposeRequest(data=request.data))
        base = sent.pop("base_run", None)
        proposal = proposals.propose(
            by=self.user,
            run=run_get(sent.pop("run")),
            base_run=run_get(base) if base else None,
            reviewers=[person_get(name) for name in sent.pop("reviewers", [])],
            **sent,
        )
        url = reverse("api:proposal", kwargs={"number": proposal.pk}, request=request)
        return self.row_response(
            ProposalDetail, proposal, status.HTTP_201_CREATED, {"Location": url}
        )


class ProposalView(ApiView):
    @operation({200: ProposalDetail})
    def get(self, request: Request, number: int) -> Response:
        """Get a proposal with its activity."""
        return Response(ProposalDetail(proposal_get(number)).data)


class ProposalDifferenceView(ApiView):
    @operation({200: ProposalComparison})
    def get(self, request: Request, number: int) -> Response:
        """Get the changes of a proposal: settings, replicas and outcomes on the same traffic.

        Pairs are (active, proposed). `worse` lists what gets worse, the largest change first.
        `saving` is a fraction of the cost at equal attainment; null if unknown.
        """
        difference = proposed_of(proposal_get(number))
        if difference is None:
            raise NotFound(f"The run of proposal {number} was removed.")
        return Response(as_json(difference))


class ProposalCommentsView(ApiView):
    @operation(
        {201: ProposalEntryItem}, request=CommentRequest,
        examples={"On a setting": {
            "text": "@anna, why?", "anchor": {"setting": "forecast.quantile"}}},
    )  # fmt: skip
    def post(self, request: Request, number: int) -> Response:
        """Comment on a proposal, on a setting, or on a point of a chart."""
        sent = valid(CommentRequest(data=request.data))
        entry = proposals.comment(proposal=proposal_get(number), by=self.user, **sent)
        return Response(ProposalEntryItem(entry).data, status.HTTP_201_CREATED)


class ProposalApproveView(ApiView):
    @operation(DECIDED, request=DecisionRequest, examples={"Yes": {"text": "Good."}})
    def post(self, request: Request, number: int) -> Response:
        """Approve a proposal; with enough approvals its plan becomes active.

        For approvers and admins, but not for the people who proposed or amended it.
        """
        sent = valid(DecisionRequest(data=request.data))
        return _current(proposals.approve(proposal=proposal_get(number), by=self.user, **sent))


class ProposalChangesView(ApiView):
    @operation(DECIDED, request=DecisionRequest, examples={"Say what": {"text": "Take 3."}})
    def post(self, request: Request, number: int) -> Response:
        """Request changes; for approvers and admins."""
        sent = valid(DecisionRequest(data=request.data))
        return _current(
            proposals.ask_for_changes(proposal=proposal_get(number), by=self.user, **sent)
        )


class ProposalRejectView(ApiView):
    @operation(DECIDED, request=DecisionRequest)
    def post(self, request: Request, number: int) -> Response:
        """Reject a proposal; for approvers and admins."""
        sent = valid(DecisionRequest(data=request.data))
        return _current(proposals.reject(proposal=proposal_get(number), by=self.user, **sent))


class ProposalWithdrawView(ApiView):
    @operation(DECIDED, request=DecisionRequest)
    def post(self, request: Request, number: int) -> Response:
        """Withdraw a proposal; for its author and admins."""
        sent = valid(DecisionRequest(data=request.data))
        return _current(proposals.withdraw(proposal=proposal_get(number), by=self.user, **sent))


class ProposalReadyView(ApiView):
    @operation(DECIDED, request=None)
    def post(self, request: Request, number: int) -> Response:
        """Mark a draft as ready for review."""
        return _current(proposals.mark_ready(proposal=proposal_get(number), by=self.user))


class ProposalAmendView(ApiView):
    @operation(DECIDED, request=AmendRequest, examples={"Another run": {"run": 8}})
    def post(self, request: Request, number: int) -> Response:
        """Replace the run of a proposal.

        Earlier approvals no longer count. Submit the same run again to compare it with the current
        active plan.
        """
        sent = valid(AmendRequest(data=request.data))
        run = run_get(sent.pop("run"))
        return _current(
            proposals.amend(proposal=proposal_get(number), by=self.user, run=run, **sent)
        )


class ProposalReviewersView(ApiView):
    @operation(DECIDED, request=ReviewersRequest, examples={"Anna": {"reviewers": ["anna"]}})
    def post(self, request: Request, number: int) -> Response:
        """Request a review from approvers."""
        sent = valid(ReviewersRequest(data=request.data))
        people = [person_get(name) for name in sent["reviewers"]]
        return _current(
            proposals.request_review(proposal=proposal_get(number), by=self.user, reviewers=people)
        )


class ReviewRulesView(ApiView):
    @operation({200: ReviewRulesDetail})
    def get(self, request: Request) -> Response:
        """Get the rules of review."""
        return Response(ReviewRulesDetail(review_rules()).data)

    @operation(
        {200: ReviewRulesDetail}, request=ReviewRulesDetail,
        examples={"Two pairs of eyes": {
            "approvals": 2, "self_approval": False, "admin_above_usd_30d": 100_000,
            "required": True}},
    )  # fmt: skip
    def put(self, request: Request) -> Response:
        """Change the rules of review; for admins."""
        sent = valid(ReviewRulesDetail(data=request.data))
        return Response(ReviewRulesDetail(rules_change(by=self.user, **sent)).data)


def _current(proposal: Proposal) -> Response:
    """Return the response with a proposal as it is stored now, after a change."""
    return Response(ProposalDetail(proposal_get(proposal.pk)).data)
