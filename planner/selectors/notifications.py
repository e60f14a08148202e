"""Read notification addresses and their deliveries."""

from django.db.models import Q, QuerySet

from planner.models import Channel, Delivery, User


def channels_of(user: User, *, shared: bool) -> QuerySet[Channel]:
    """Return the notification channels of a user; with ``shared``, also those of the workspace."""
    return Channel.objects.select_related("user").filter(_owned_by(user, shared))


def deliveries_of(user: User, *, shared: bool) -> QuerySet[Delivery]:
    """Return the deliveries to the channels that ``channels_of`` returns, with any outcome."""
    return Delivery.objects.select_related("channel").filter(
        channel__in=Channel.objects.filter(_owned_by(user, shared))
    )


def _owned_by(user: User, shared: bool) -> Q:
    """Return a filter for the user's channels; with ``shared``, also those of the workspace."""
    owned = Q(user=user)
    return owned | Q(user=None) if shared else owned
