from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiResponse
from rest_framework import generics, status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.filters import Pages
from planner.api.schema import operation
from planner.api.serializers.workspaces import (
    ChannelItem,
    ChannelMade,
    ChannelRequest,
    DeliveryItem,
)
from planner.models import Delivery
from planner.selectors.notices import channels_of, deliveries_of
from planner.services import notices
from planner.services.access import may_administer


class ChannelsView(ApiView):
    @operation({200: ChannelItem(many=True)}, 403)
    def get(self, request: Request) -> Response:
        """Where you are told of events; for admins also where the workspace is."""
        rows = channels_of(self.user, shared=may_administer(self.user))
        return Response(ChannelItem(rows, many=True).data)

    @operation(
        {201: ChannelMade}, 400, 403,
        request=ChannelRequest,
        examples={"Slack": {"kind": "webhook", "address": "https://hooks.slack.com/services/T/B/X"}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Have an address told; webhooks are signed and go to hosts that the operator lists."""
        channel = notices.channel_add(user=self.user, **valid(ChannelRequest(data=request.data)))
        channel.signing_key = notices.signing_key(channel)  # type: ignore[attr-defined]
        return Response(ChannelMade(channel).data, status.HTTP_201_CREATED)


class ChannelView(ApiView):
    @operation({204: OpenApiResponse(description="It is no longer told.")}, 403, 404)
    def delete(self, request: Request, number: int) -> Response:
        """Have an address told no longer."""
        notices.channel_remove(user=self.user, channel=notices.channel_get(self.user, number))
        return Response(status=status.HTTP_204_NO_CONTENT)


class ChannelTestView(ApiView):
    @operation({202: DeliveryItem}, 403, 404, request=None)
    def post(self, request: Request, number: int) -> Response:
        """Tell an address that it works."""
        delivery = notices.channel_test(channel=notices.channel_get(self.user, number))
        return Response(DeliveryItem(delivery).data, status.HTTP_202_ACCEPTED)


class DeliveriesView(ApiView, generics.ListAPIView[Delivery]):
    serializer_class = DeliveryItem
    pagination_class = Pages

    def get_queryset(self) -> QuerySet[Delivery]:
        if getattr(self, "swagger_fake_view", False):  # asked for the document, by nobody
            return Delivery.objects.none()
        return deliveries_of(self.user, shared=may_administer(self.user))

    @operation({200: DeliveryItem(many=True)}, 400, 403)
    def get(self, request: Request, *args: object, **kwargs: object) -> Response:
        """What those addresses were told, the newest first, with why where they were not."""
        return self.list(request, *args, **kwargs)
