from rest_framework import serializers

from planner.api.serializers.strict_fields import StrictSerializer
from planner.api.serializers.typed import TypedField
from planner.models import Channel, Delivery, Event, Workspace


class WorkspaceItem(serializers.ModelSerializer[Workspace]):
    class Meta:
        model = Workspace
        fields = ["slug", "name", "second_factor", "created_at"]


class WorkspaceRequest(StrictSerializer):
    name = serializers.CharField(max_length=80)
    slug = serializers.CharField(
        max_length=40,
        default="",
        help_text="Permanent slug. Default: derived from the name.",
    )


class WorkspaceChange(StrictSerializer):
    name = serializers.CharField(max_length=80, required=False)
    second_factor = serializers.BooleanField(
        required=False,
        help_text=("Require 2FA for every member. Set by its admins."),
    )


class RemovalAsked(StrictSerializer):
    confirm = serializers.CharField(max_length=40, help_text="Slug of the workspace, to confirm.")


class WorkspaceRemoved(StrictSerializer):
    rows = serializers.IntegerField(help_text="Number of removed rows in all tables.")
    file = serializers.CharField(
        help_text="File with the removed data, in `removed` of the data directory."
    )


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


class ChannelMade(ChannelItem):
    signing_key = serializers.CharField(
        help_text="Secret. v1 of Headroom-Signature is HMAC-SHA256 of SECONDS.BODY."
    )

    class Meta(ChannelItem.Meta):
        fields = [*ChannelItem.Meta.fields, "signing_key"]


class DeliveryItem(serializers.ModelSerializer[Delivery]):
    class Meta:
        model = Delivery
        fields = [
            "id",
            "channel",
            "event",
            "text",
            "url",
            "state",
            "tries",
            "problem",
            "created_at",
            "sent_at",
        ]
