"""Define the forms for recipients of notifications."""

from __future__ import annotations

from typing import Any

from django import forms

from planner.models import Channel, Event
from planner.web.forms.widgets import DressedForm, dress

WHOSE = (("mine", "Me"), ("ours", "The workspace"))


class ChannelForm(forms.Form):
    kind = forms.ChoiceField(label="By", choices=Channel.Kind.choices)
    address = forms.CharField(
        label="Address", max_length=500, help_text="A mailbox, or the address of a webhook."
    )
    events = forms.MultipleChoiceField(
        label="Of",
        choices=[choice for choice in Event.choices if choice[0] != Event.TEST],
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Nothing chosen is everything.",
    )
    whose = forms.ChoiceField(label="For", choices=WHOSE)

    def __init__(self, *args: Any, shared: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not shared:
            del self.fields["whose"]
        dress(self)

    def chosen(self) -> dict[str, Any]:
        fields = dict(self.cleaned_data)
        return fields | {"mine": fields.pop("whose", "mine") == "mine"}


class MailboxForm(DressedForm):
    email = forms.EmailField(
        label="My mailbox",
        required=False,
        help_text="For a new password, when yours is forgotten.",
    )
