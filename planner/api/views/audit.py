"""Serve the audit log."""

from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers

from planner.api.base import valid
from planner.api.filters import ListView, lists
from planner.api.serializers.fields import OptionalText
from planner.models import AuditRecord
from planner.selectors.audit import FIELDS, audit_list


class AuditQuery(serializers.Serializer[Any]):
    """Filters of audit records; default: all records."""

    actor = OptionalText(max_length=200)
    action = OptionalText(
        max_length=40,
        help_text="Action, such as proposal.approved, or proposal for all its actions.",
    )
    search = OptionalText(max_length=200)
    page = serializers.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    cursor = serializers.CharField(required=False, allow_blank=True)
    page_size = serializers.IntegerField(required=False, min_value=1, max_value=500)


class AuditItem(serializers.ModelSerializer[AuditRecord]):
    """An audit record; `details` is JSON as text."""

    class Meta:
        model = AuditRecord
        fields = list(FIELDS)


@lists(AuditItem, parameters=[AuditQuery])
class AuditListView(ListView[AuditRecord]):
    """List who did what, newest first; for admins."""

    for_admins = True

    queryset = AuditRecord.objects.none()  # for the OpenAPI document

    def get_queryset(self) -> QuerySet[AuditRecord]:
        query = valid(AuditQuery(data=self.request.query_params))
        filters = {name: query[name] for name in ("actor", "action", "search")}
        return audit_list(all_workspaces=self.user.is_superuser, **filters)
