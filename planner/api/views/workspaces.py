from pathlib import Path

from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.schema import operation
from planner.api.serializers.strict_fields import StrictSerializer
from planner.models import Workspace
from planner.selectors.workspaces import workspace_for
from planner.services import workspaces
from planner.services.workspace_removal import workspace_remove


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


class WorkspacesView(ApiView):
    @operation({200: WorkspaceItem(many=True)}, 403)
    def get(self, request: Request) -> Response:
        """List your workspaces; send one's slug as Headroom-Workspace, or log in to it."""
        return Response(WorkspaceItem(self.user.workspaces, many=True).data)

    @operation(
        {201: WorkspaceItem}, 400, 403,
        request=WorkspaceRequest, examples={"A team's": {"name": "Search"}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Create a workspace; for admins of the installation."""
        workspaces.check_installation_admin(self.user)
        sent = valid(WorkspaceRequest(data=request.data))
        workspace = workspaces.workspace_add(by=self.user, **sent)
        return Response(WorkspaceItem(workspace).data, status.HTTP_201_CREATED)


class WorkspaceView(ApiView):
    @operation(
        {200: WorkspaceItem}, 400, 403, 404,
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
        if (required := sent.get("second_factor")) is not None:
            workspace = workspaces.workspace_rule(
                by=self.user, workspace=workspace, second_factor=required
            )
        return Response(WorkspaceItem(workspace).data)

    @operation({200: WorkspaceRemoved}, 400, 403, 404, 409, parameters=[RemovalAsked])
    def delete(self, request: Request, slug: str) -> Response:
        """Remove a workspace with everything in it; for admins of the installation.

        Its rows and arrays are first written to a file of the installation. Accounts and the audit
        log stay. The workspace `main` cannot be removed.
        """
        workspace = workspace_for(self.user, slug)
        workspaces.check_installation_admin(self.user)
        sent = valid(RemovalAsked(data=request.query_params))
        removal = workspace_remove(by=self.user, workspace=workspace, confirm=sent["confirm"])
        return Response(
            WorkspaceRemoved({"rows": removal.rows, "file": Path(removal.path).name}).data
        )
