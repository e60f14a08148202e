"""Serve workspaces and the people in them."""

from pathlib import Path

from drf_spectacular.utils import OpenApiResponse
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.filters import ListView, lists
from planner.api.schema import operation
from planner.api.serializers.fields import StrictSerializer
from planner.models import User, Workspace
from planner.selectors.people import people_list, person_get, workspace_for
from planner.services import people, workspaces
from planner.services.account_removal import account_remove
from planner.services.second_factor import factor_reset
from planner.services.workspaces import workspace_remove


class WorkspaceItem(serializers.ModelSerializer[Workspace]):
    class Meta:
        model = Workspace
        fields = ["slug", "name", "second_factor", "created_at"]


class WorkspaceRequest(StrictSerializer):
    name = serializers.CharField(max_length=80)
    slug = serializers.CharField(
        max_length=40, default="", help_text="Permanent slug. Default: derived from the name."
    )


class WorkspaceChange(StrictSerializer):
    name = serializers.CharField(max_length=80, required=False)
    second_factor = serializers.BooleanField(
        required=False, help_text=("Require 2FA for every member. Set by its admins.")
    )


class RemovalQuery(StrictSerializer):
    confirm = serializers.CharField(max_length=40, help_text="Slug of the workspace, to confirm.")


class WorkspaceRemoved(StrictSerializer):
    rows = serializers.IntegerField(help_text="Number of removed rows in all tables.")
    file = serializers.CharField(
        help_text="File with the removed data, in `removed` of the data directory."
    )


class WorkspacesView(ApiView):
    @operation({200: WorkspaceItem(many=True)})
    def get(self, request: Request) -> Response:
        """List your workspaces; send one's slug as Headroom-Workspace, or log in to it."""
        return Response(WorkspaceItem(self.user.workspaces, many=True).data)

    @operation(
        {201: WorkspaceItem}, request=WorkspaceRequest, examples={"A team's": {"name": "Search"}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Create a workspace; for admins of the installation."""
        workspaces.check_installation_admin(self.user)
        sent = valid(WorkspaceRequest(data=request.data))
        workspace = workspaces.workspace_add(by=self.user, **sent)
        return Response(WorkspaceItem(workspace).data, status.HTTP_201_CREATED)


class WorkspaceView(ApiView):
    @operation(
        {200: WorkspaceItem},
        request=WorkspaceChange, examples={"Another name": {"name": "Search and chat"}},
    )  # fmt: skip
    def patch(self, request: Request, slug: str) -> Response:
        """Rename a workspace (installation admins), or require second factors (its admins)."""
        workspace = workspace_for(self.user, slug)
        sent = valid(WorkspaceChange(data=request.data))
        if "name" in sent:
            workspace = workspaces.workspace_rename(
                by=self.user, workspace=workspace, name=sent["name"]
            )
        if "second_factor" in sent:
            workspace = workspaces.workspace_require_second_factor(
                by=self.user, workspace=workspace, second_factor=sent["second_factor"]
            )
        return Response(WorkspaceItem(workspace).data)

    @operation({200: WorkspaceRemoved}, parameters=[RemovalQuery])
    def delete(self, request: Request, slug: str) -> Response:
        """Remove a workspace with everything in it; for admins of the installation.

        Its rows and arrays are first written to a file of the installation. Accounts and the audit
        log stay. The workspace `main` cannot be removed.
        """
        workspace = workspace_for(self.user, slug)
        workspaces.check_installation_admin(self.user)
        sent = valid(RemovalQuery(data=request.query_params))
        removal = workspace_remove(by=self.user, workspace=workspace, confirm=sent["confirm"])
        return Response(
            WorkspaceRemoved({"rows": removal.rows, "file": Path(removal.path).name}).data
        )


class Person(serializers.ModelSerializer[User]):
    user = serializers.CharField(source="username")
    role = serializers.ChoiceField(choices=User.Role.choices, help_text="Role in this workspace.")
    active = serializers.BooleanField(source="is_active", help_text="true: the person may sign in.")

    second_factor = serializers.BooleanField(source="has_second_factor", read_only=True)

    class Meta:
        model = User
        fields = ["id", "user", "role", "active", "second_factor", "last_login"]


class InviteRequest(StrictSerializer):
    user = serializers.CharField(max_length=150)
    role = serializers.ChoiceField(choices=User.Role.choices)
    existing = serializers.BooleanField(
        default=False, help_text="true: the person also has an account in another workspace."
    )


class PersonChange(StrictSerializer):
    role = serializers.ChoiceField(choices=User.Role.choices, required=False)
    active = serializers.BooleanField(required=False, help_text="true: the person may sign in.")
    second_factor = serializers.ChoiceField(
        choices=[False], required=False, help_text="false: reset two-factor authentication."
    )


class Invitation(StrictSerializer):
    user = serializers.CharField()
    role = serializers.CharField()
    invitation = serializers.URLField(
        allow_blank=True, help_text='Address to choose a password. "": has an account.'
    )


class PersonRemoval(StrictSerializer):
    confirm = serializers.CharField(max_length=150, help_text="User name, to confirm.")
    to = serializers.CharField(
        max_length=150, default="", help_text="New owner of the data, a member of this workspace."
    )


class AccountRemoved(StrictSerializer):
    user = serializers.CharField()
    passed = serializers.IntegerField(help_text="Number of items with a new owner.")


@lists(Person, rows=people_list)
class PersonListView(ListView[User]):
    """List the people of the workspace; for admins."""

    for_admins = True

    @operation(
        {201: Invitation},
        request=InviteRequest, examples={"Somebody who plans": {"user": "pia", "role": "planner"}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Invite somebody; for admins.

        The person chooses a password at the returned address, which works once and for three days.
        """
        sent = valid(InviteRequest(data=request.data))
        if sent["existing"]:
            joined = workspaces.person_join(by=self.user, name=sent["user"], role=sent["role"])
            # The person already has a password, so there is no address to send.
            return _invitation(request, joined, "", status.HTTP_201_CREATED)
        invited = people.person_invite(by=self.user, name=sent["user"], role=sent["role"])
        return _invitation(request, invited.person, invited.path, status.HTTP_201_CREATED)


class PersonView(ApiView):
    for_admins = True

    @operation({200: Person}, request=PersonChange, examples={"End access": {"active": False}})
    def patch(self, request: Request, name: str) -> Response:
        """Change a role, disable or enable access, or end a second factor; for admins.

        A disabled person loses their tokens. Their work stays.
        """
        sent = valid(PersonChange(data=request.data))
        person = person_get(name)
        if sent.pop("second_factor", None) is False:
            factor_reset(by=self.user, person=person)
        if sent:
            person = people.person_change(by=self.user, person=person, **sent)
        return Response(Person(person).data)

    @operation({204: OpenApiResponse(description="Removed.")})
    def delete(self, request: Request, name: str) -> None:
        """Remove somebody from this workspace; for admins. The account and its work stay."""
        workspaces.person_leave(by=self.user, person=person_get(name))


class AccountView(ApiView):
    for_admins = True

    @operation({200: AccountRemoved}, parameters=[PersonRemoval])
    def delete(self, request: Request, name: str) -> Response:
        """Remove an account for good; for admins.

        Its objects pass to `to`; `confirm` repeats the user name. Decisions of the person stay,
        without a name; the audit log keeps the name.
        """
        person = person_get(name)
        sent = valid(PersonRemoval(data=request.query_params))
        heir = person_get(sent["to"]) if sent["to"] else None
        passed = account_remove(
            by=self.user, person=person, confirm=sent["confirm"], new_owner=heir
        )
        return Response(AccountRemoved({"user": person.username, "passed": passed}).data)


class InvitationView(ApiView):
    for_admins = True

    @operation({201: Invitation}, request=None)
    def post(self, request: Request, name: str) -> Response:
        """Create a new address at which somebody can choose a password; for admins."""
        person = person_get(name)
        path = people.invitation_path(by=self.user, person=person)
        return _invitation(request, person, path, status.HTTP_201_CREATED)


def _invitation(request: Request, person: User, path: str, code: int) -> Response:
    """Return the response with the invitation of ``person`` to the page ``path`` ("": none)."""
    address = request.build_absolute_uri(path) if path else ""
    answer = {"user": person.username, "role": person.role}
    return Response(Invitation(answer | {"invitation": address}).data, code)
