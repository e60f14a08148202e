from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiResponse
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.filters import ListView, lists
from planner.api.schema import operation
from planner.api.serializers.workspaces import (
    ChannelItem,
    ChannelMade,
    ChannelRequest,
    DeliveryItem,
)
from planner.models import Delivery
from planner.selectors.notifications import channels_of, deliveries_of
from planner.services import notifications


class ChannelsView(ApiView):
    @operation({200: ChannelItem(many=True)}, 403)
    def get(self, request: Request) -> Response:
        """List your notification channels; for admins also those of the workspace."""
        rows = channels_of(self.user, shared=self.user.may_administer)
        return Response(ChannelItem(rows, many=True).data)

    @operation(
        {201: ChannelMade}, 400, 403,
        request=ChannelRequest,
        examples={"Slack": {"kind": "webhook", "address": "https://hooks.slack.com/services/T/B/X"}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Add a notification channel.

        Webhooks are signed, and go only to hosts that the operator lists.
        """
        channel = notifications.channel_add(
            user=self.user, **valid(ChannelRequest(data=request.data))
        )
        channel.signing_key = notifications.signing_key(channel)  # type: ignore[attr-defined]
        return Response(ChannelMade(channel).data, status.HTTP_201_CREATED)


class ChannelView(ApiView):
    @operation({204: OpenApiResponse(description="Notifications ended.")}, 403, 404)
    def delete(self, request: Request, number: int) -> None:
        """Remove a notification channel."""
        notifications.channel_remove(
            user=self.user, channel=notifications.channel_get(self.user, number)
        )


class ChannelTestView(ApiView):
    @operation({202: DeliveryItem}, 403, 404, request=None)
    def post(self, request: Request, number: int) -> Response:
        """Send a test notification."""
        delivery = notifications.channel_test(channel=notifications.channel_get(self.user, number))
        return Response(DeliveryItem(delivery).data, status.HTTP_202_ACCEPTED)


@lists(DeliveryItem, 403)
class DeliveriesView(ListView[Delivery]):
    """List notifications, newest first, with the reason if one was not delivered."""

    def get_queryset(self) -> QuerySet[Delivery]:
        if getattr(self, "swagger_fake_view", False):  # no user: OpenAPI document
            return Delivery.objects.none()
        return deliveries_of(self.user, shared=self.user.may_administer)
