from rest_framework import serializers

from planner.api.serializers.strict_fields import StrictSerializer
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
        help_text="Slug, which never changes. Default: made from the name.",
    )


class WorkspaceChange(StrictSerializer):
    name = serializers.CharField(max_length=80, required=False)
    second_factor = serializers.BooleanField(
        required=False,
        help_text=("Whether everybody in it needs a second factor. Set by its admins."),
    )


class RemovalAsked(StrictSerializer):
    confirm = serializers.CharField(max_length=40, help_text="Its slug, as you type it.")


class WorkspaceRemoved(StrictSerializer):
    rows = serializers.IntegerField(help_text="Of all tables.")
    file = serializers.CharField(help_text="All of it, in `removed` of the data directory.")


class ChannelItem(serializers.ModelSerializer[Channel]):
    mine = serializers.SerializerMethodField(help_text="False: of the workspace.")
    events = serializers.ListField(
        child=serializers.ChoiceField(choices=Event.choices), help_text="[] is everything."
    )

    class Meta:
        model = Channel
        fields = ["id", "kind", "address", "events", "mine", "created_at"]

    def get_mine(self, channel: Channel) -> bool:
        return channel.user_id is not None


class ChannelRequest(StrictSerializer):
    kind = serializers.ChoiceField(choices=Channel.Kind.choices)
    address = serializers.CharField(max_length=500, help_text="A mailbox, or a webhook's URL.")
    events = serializers.ListField(
        child=serializers.ChoiceField(choices=Event.choices),
        default=list,
        max_length=len(Event),
        help_text="[] is everything.",
    )
    mine = serializers.BooleanField(
        default=True, help_text=("False (admins): those of the whole workspace.")
    )


class ChannelMade(ChannelItem):
    signing_key = serializers.CharField(
        help_text="HMAC-SHA256 of SECONDS.BODY under it is v1 of Headroom-Signature."
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
