"""Addresses that are told, and what they were told."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from planner.models import Channel, Delivery, User


def channels_of(user: User, *, shared: bool) -> QuerySet[Channel]:
    """One's own, and with ``shared``, for admins, those of the workspace."""
    return Channel.objects.select_related("user").filter(_whose(user, shared))


def deliveries_of(user: User, *, shared: bool) -> QuerySet[Delivery]:
    """To those, the newest first."""
    return Delivery.objects.select_related("channel").filter(
        channel__in=Channel.objects.filter(_whose(user, shared))
    )


def _whose(user: User, shared: bool) -> Q:
    return Q(user=user) | Q(user=None) if shared else Q(user=user)
