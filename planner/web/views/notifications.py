"""Manage the recipients of notifications, and show what became of each notification."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from planner.models import Channel, Event
from planner.selectors.notifications import channels_of, deliveries_of
from planner.services import notifications
from planner.services.passwords import check_verified, mailbox_set, needs_password
from planner.web.form_responses import attempt, render_form
from planner.web.forms.widgets import DressedForm, dress
from planner.web.request import Request, TemplateContext

WHOSE = (("mine", "Me"), ("ours", "The workspace"))


@never_cache
@require_http_methods(["GET", "POST"])
def listing(request: Request) -> HttpResponse:
    """List the notification channels, or add one."""
    shared = request.user.may_administer
    if request.method != "POST":
        return _render_channels(request, ChannelForm(shared=shared), _mailbox(request))
    form = ChannelForm(request.POST, shared=shared)
    channel, problem = attempt(
        form, lambda: notifications.channel_add(user=request.user, **form.chosen())
    )
    if channel is None:
        return _render_channels(request, form, _mailbox(request), problem)
    messages.success(request, f"{channel.address} receives notifications.")
    return redirect("web:notices")


@require_POST
def change(request: Request, pk: int) -> HttpResponse:
    """Remove a recipient, or send it a test notification."""
    channel = notifications.channel_get(request.user, pk)
    if "remove" in request.POST:
        notifications.channel_remove(user=request.user, channel=channel)
        messages.success(request, f"{channel.address} gets no more notifications.")
    else:
        notifications.channel_test(channel=channel)
        messages.success(request, f"A test is on its way to {channel.address}.")
    return redirect("web:notices")


@require_POST
def mailbox(request: Request) -> HttpResponse:
    """Save the user's mail address."""
    form = MailboxForm(request.POST)

    def save() -> None:
        """Save the address, if the user proved the password recently or does now."""
        check_verified(request, request.user, request.POST.get("again", ""))
        mailbox_set(user=request.user, email=form.cleaned_data["email"])

    _, problem = attempt(form, save)
    if problem is not None:
        channel_form = ChannelForm(shared=request.user.may_administer)
        return _render_channels(request, channel_form, form, problem)
    messages.success(request, "Your mail address is saved.")
    return redirect("web:notices")


def _mailbox(request: Request) -> MailboxForm:
    return MailboxForm(initial={"email": request.user.email})


def _render_channels(
    request: Request,
    form: ChannelForm,
    mailbox: MailboxForm,
    problem: Exception | None = None,
) -> HttpResponse:
    """Show the page of channels, with the error of a form if there is one."""
    shared = request.user.may_administer
    channels = channels_of(request.user, shared=shared)
    context: TemplateContext = {
        "form": form,
        "mailbox": mailbox if notifications.mail_configured() else None,
        "again": needs_password(request),
        "channels": [(channel, notifications.signing_key(channel)) for channel in channels],
        "deliveries": deliveries_of(request.user, shared=shared)[:20],
    }
    return render_form(request, "web/notices.html", context, problem)


class ChannelForm(forms.Form):
    kind = forms.ChoiceField(label="By", choices=Channel.Kind.choices)
    address = forms.CharField(
        label="Address", max_length=500, help_text="Email address or URL of a webhook."
    )
    events = forms.MultipleChoiceField(
        label="Of",
        choices=[choice for choice in Event.choices if choice[0] != Event.TEST],
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="None selected: all events.",
    )
    whose = forms.ChoiceField(label="For", choices=WHOSE)

    def __init__(self, *args: Any, shared: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not shared:
            del self.fields["whose"]
        dress(self)

    def chosen(self) -> dict[str, Any]:
        """Return the arguments of ``channel_add``."""
        arguments = dict(self.cleaned_data)
        arguments["mine"] = arguments.pop("whose", "mine") == "mine"
        return arguments


class MailboxForm(DressedForm):
    email = forms.EmailField(label="My mailbox", required=False, help_text="For password resets.")
