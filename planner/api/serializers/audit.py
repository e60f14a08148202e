from __future__ import annotations

from typing import Any

from rest_framework import serializers

from planner.models import AuditRecord
from planner.selectors.audit import FIELDS


class AuditAsked(serializers.Serializer[Any]):
    """Filters of audit records; default: all records."""

    actor = serializers.CharField(required=False, default="", allow_blank=True, max_length=200)
    action = serializers.CharField(
        required=False,
        default="",
        allow_blank=True,
        max_length=40,
        help_text="Such as proposal.approved, or proposal for all of its deeds.",
    )
    search = serializers.CharField(required=False, default="", allow_blank=True, max_length=200)
    page = serializers.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    cursor = serializers.CharField(required=False, allow_blank=True)
    page_size = serializers.IntegerField(required=False, min_value=1, max_value=500)


class AuditItem(serializers.ModelSerializer[AuditRecord]):
    """An audit record; `details` is JSON as text."""

    class Meta:
        model = AuditRecord
        fields = list(FIELDS)
