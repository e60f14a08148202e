"""Serve the audit log."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.filters import Pages
from planner.api.schema import operation
from planner.api.serializers.audit import AuditAsked, AuditItem
from planner.models import AuditRecord
from planner.selectors.audit import audit_list
from planner.services.access import check_may_administer


class AuditListView(ApiView, generics.ListAPIView[AuditRecord]):
    serializer_class = AuditItem
    queryset = AuditRecord.objects.none()  # for the OpenAPI document
    pagination_class = Pages

    def get_queryset(self) -> QuerySet[AuditRecord]:
        query = valid(AuditAsked(data=self.request.query_params))
        words = {name: query[name] for name in ("actor", "action", "search")}
        return audit_list(all_workspaces=self.user.is_superuser, **words)

    @operation({200: AuditItem(many=True)}, 400, 403, 404, parameters=[AuditAsked])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List who did what, newest first; for admins."""
        check_may_administer(self.user)
        return self.list(request, *args, **kwargs)
