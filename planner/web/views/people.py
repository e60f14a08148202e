"""Show admins the people page, and let an invited person choose a password."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.views import PasswordResetConfirmView
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse, reverse_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from planner.models import User
from planner.models.workspace import current_workspace
from planner.selectors.people import people_list, person_get
from planner.services import people, workspaces
from planner.services.access import check_may_administer
from planner.services.account_removal import account_remove, owned_row_count
from planner.services.passwords import password_changed
from planner.services.second_factor import factor_reset
from planner.web.form_responses import attempt, render_form
from planner.web.forms.widgets import DressedForm, ZoneForm, dress
from planner.web.paging import page_of
from planner.web.request import Request


class Welcome(PasswordResetConfirmView):
    """A page at a secret address where a person chooses a password once, then signs in."""

    template_name = "web/welcome.html"
    success_url = reverse_lazy("web:login")

    def get_form(self, form_class: Any = None) -> Any:
        return dress(super().get_form(form_class))

    def form_valid(self, form: Any) -> HttpResponse:
        """Set the password of an invited person."""
        answer = super().form_valid(form)
        password_changed(user=form.user)
        messages.success(self.request, "Your password is set. Sign in with it.")
        return answer


@never_cache
@require_http_methods(["GET", "POST"])
def listing(request: Request) -> HttpResponse:
    """Show all people, with the form to invite a person, or to add one who has an account."""
    check_may_administer(request.user)
    if request.method != "POST":
        return _render_people(request, InviteForm())
    form = InviteForm(request.POST)
    if form.is_valid() and form.cleaned_data["existing"]:
        joined, problem = attempt(
            form, lambda: workspaces.person_join(by=request.user, **form.chosen())
        )
        if joined is None:
            return _render_people(request, form, problem=problem)
        messages.success(request, f"{joined.username} belongs to this workspace now.")
        return redirect("web:people")
    invited, problem = attempt(form, lambda: people.person_invite(by=request.user, **form.chosen()))
    if invited is None:
        return _render_people(request, form, problem=problem)
    return _render_people(request, InviteForm(), invited=invited.person, path=invited.path)


@require_POST
def change(request: Request, name: str) -> HttpResponse:
    """Change a person's role, or end or restore their access."""
    if "leave" in request.POST:
        workspaces.person_leave(by=request.user, person=person_get(name))
        messages.success(request, f"{name} no longer belongs to this workspace.")
        return redirect("web:people")
    if "factor" in request.POST:
        factor_reset(by=request.user, person=person_get(name))
        messages.success(request, f"{name} signs in without a second factor now.")
        return redirect("web:people")
    # None: the access stays as it is.
    active = {"disable": False, "enable": True}.get(request.POST.get("access", ""))
    person = people.person_change(
        by=request.user, person=person_get(name), role=request.POST.get("role"), active=active
    )
    change_made = f"is {person.role}"
    if active is not None:
        change_made = "can sign in again" if active else "can no longer sign in"
    messages.success(request, f"{person.username} {change_made}.")
    return redirect("web:people")


@never_cache
@require_POST
def invite_again(request: Request, name: str) -> HttpResponse:
    """Create a new address for choosing a password, for people who lost theirs."""
    person = person_get(name)
    path = people.invitation_path(by=request.user, person=person)
    return _render_people(request, InviteForm(), invited=person, path=path)


@require_http_methods(["GET", "POST"])
def remove(request: Request, name: str) -> HttpResponse:
    """Show the form to delete an account, or delete it if its name was typed."""
    check_may_administer(request.user)
    person = person_get(name)
    people.check_may_change_account(request.user, person, "remove")
    form = RemovalForm(request.POST or None, heirs=people_list().exclude(pk=person.pk))
    problem: Exception | None = None
    if request.method == "POST":
        removed, problem = attempt(
            form,
            lambda: account_remove(
                by=request.user,
                person=person,
                confirm=form.cleaned_data["confirm"],
                new_owner=form.cleaned_data["to"],
            ),
        )
        if removed is not None:
            messages.success(request, f"{person.username} is removed.")
            return redirect("web:people")
    context = {"person": person, "owned": owned_row_count(person), "form": form}
    return render_form(request, "web/person_remove.html", context, problem)


def _render_people(
    request: Request,
    form: InviteForm,
    *,
    problem: Exception | None = None,
    invited: User | None = None,
    path: str = "",
) -> HttpResponse:
    """Show the list of people, with a new invitation or an error if there is one.

    ``invited`` is the new person, ``path`` that of the page where they choose a password.
    """
    context = {
        "page": page_of(request, people_list()),
        "form": form,
        "zone_form": ZoneForm(current_workspace().time_zone),
        "roles": User.Role.choices,
        "invited": invited,
        "address": request.build_absolute_uri(path) if path else "",
        "here": reverse("web:people"),
    }
    return render_form(request, "web/people.html", context, problem)


class InviteForm(DressedForm):
    name = forms.CharField(
        label="User name",
        max_length=150,
        widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none"}),
    )
    role = forms.ChoiceField(
        label="Role", choices=User.Role.choices, initial=User.Role.VIEWER.value
    )

    existing = forms.BooleanField(
        label="Has an account already",
        required=False,
        help_text="For a person of another workspace. The password stays the same.",
    )

    def chosen(self) -> dict[str, str]:
        """Return the arguments of ``person_invite``."""
        return {"name": self.cleaned_data["name"], "role": self.cleaned_data["role"]}


class RemovalForm(forms.Form):
    to = forms.ModelChoiceField(
        queryset=User.objects.none(),
        label="New owner of their items",
        required=False,
        empty_label="nobody: they own nothing",
    )
    confirm = forms.CharField(
        label="Type the user name to confirm",
        max_length=150,
        widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none"}),
    )

    def __init__(self, *args: Any, heirs: QuerySet[User], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["to"].queryset = heirs.filter(is_active=True)  # type: ignore[attr-defined]
        dress(self)
