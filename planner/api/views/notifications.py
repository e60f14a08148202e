from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiResponse
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.filters import ListView, lists
from planner.api.schema import operation
from planner.api.serializers.fields import StrictSerializer, TypedField
from planner.models import Channel, Delivery, Event
from planner.selectors.notifications import channels_of, deliveries_of
from planner.services import notifications


class ChannelItem(serializers.ModelSerializer[Channel]):
    mine = TypedField(
        bool,
        lambda channel: channel.user_id is not None,
        help_text="true: your own; false: of the workspace.",
    )
    events = serializers.ListField(
        child=serializers.ChoiceField(choices=Event.choices), help_text="Events. []: all."
    )

    class Meta:
        model = Channel
        fields = ["id", "kind", "address", "events", "mine", "created_at"]


class ChannelRequest(StrictSerializer):
    kind = serializers.ChoiceField(choices=Channel.Kind.choices)
    address = serializers.CharField(max_length=500, help_text="Email address, or URL of a webhook.")
    events = serializers.ListField(
        child=serializers.ChoiceField(choices=Event.choices),
        default=list,
        max_length=len(Event),
        help_text="Events. []: all.",
    )
    mine = serializers.BooleanField(
        default=True, help_text=("true: only yourself; false (admins): the whole workspace.")
    )


class NewChannel(ChannelItem):
    signing_key = serializers.CharField(
        help_text="Secret. v1 of Headroom-Signature is HMAC-SHA256 of SECONDS.BODY."
    )

    class Meta(ChannelItem.Meta):
        fields = [*ChannelItem.Meta.fields, "signing_key"]


class DeliveryItem(serializers.ModelSerializer[Delivery]):
    class Meta:
        model = Delivery
        fields = ["id", "channel", "event", "text", "url", "state", "tries", "problem",
                  "created_at", "sent_at"]  # fmt: skip


class ChannelsView(ApiView):
    @operation({200: ChannelItem(many=True)})
    def get(self, request: Request) -> Response:
        """List your notification channels; for admins also those of the workspace."""
        rows = channels_of(self.user, shared=self.user.may_administer)
        return Response(ChannelItem(rows, many=True).data)

    @operation(
        {201: NewChannel}, request=ChannelRequest,
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
        return Response(NewChannel(channel).data, status.HTTP_201_CREATED)


class ChannelView(ApiView):
    @operation({204: OpenApiResponse(description="Notifications ended.")})
    def delete(self, request: Request, number: int) -> None:
        """Remove a notification channel."""
        notifications.channel_remove(
            user=self.user, channel=notifications.channel_get(self.user, number)
        )


class ChannelTestView(ApiView):
    @operation({202: DeliveryItem}, request=None)
    def post(self, request: Request, number: int) -> Response:
        """Send a test notification."""
        delivery = notifications.channel_test(channel=notifications.channel_get(self.user, number))
        return Response(DeliveryItem(delivery).data, status.HTTP_202_ACCEPTED)


@lists(DeliveryItem)
class DeliveriesView(ListView[Delivery]):
    """List notifications, newest first, with the reason if one was not delivered."""

    def get_queryset(self) -> QuerySet[Delivery]:
        if getattr(self, "swagger_fake_view", False):  # no user: OpenAPI document
            return Delivery.objects.none()
        return deliveries_of(self.user, shared=self.user.may_administer)
