"""Store users, and what their roles allow."""

from __future__ import annotations

from typing import Any, TypeAlias

from django.contrib.auth.models import AbstractUser, UserManager
from django.utils.functional import cached_property

from planner.models import workspace as workspaces
from planner.models.workspace import Membership, Workspace, current_workspace


class WorkspaceUserManager(UserManager["User"]):
    """A manager that can also make a new user a member of the current workspace."""

    use_in_migrations = False

    def create_user(
        self,
        username: str,
        email: str | None = None,
        password: str | None = None,
        **fields: Any,
    ) -> User:
        role = fields.pop("role", None)
        user = super().create_user(username, email, password, **fields)
        if role is not None:
            user.join(current_workspace(), role)
        return user


class User(AbstractUser):
    """A person with a login.

    The role in the current workspace decides their rights. A superuser is an admin of the
    installation and may do everything in every workspace.
    """

    Role: TypeAlias = workspaces.Role

    objects = WorkspaceUserManager()  # type: ignore[misc]

    @cached_property
    def membership_list(self) -> list[Membership]:
        """Return the memberships, loaded once per object."""
        return list(self.memberships.select_related("workspace"))

    @property
    def role(self) -> workspaces.Role | None:
        """Return the role in the current workspace; None for somebody who is no member."""
        if not self.membership_list:
            return None
        here = current_workspace().pk
        return next(
            (
                workspaces.Role(membership.role)
                for membership in self.membership_list
                if membership.workspace_id == here
            ),
            None,
        )

    @cached_property
    def workspaces(self) -> list[Workspace]:
        """Return the workspaces that the user may enter, the oldest first."""
        if self.is_superuser:
            return list(Workspace.objects.all())
        return [membership.workspace for membership in self.membership_list]

    @property
    def here(self) -> Workspace | None:
        """Return the current workspace, for pages; None for somebody who belongs to none."""
        return current_workspace() if self.workspaces else None

    def join(self, workspace: Workspace, role: str) -> Membership:
        """Make the user a member, or change the role."""
        member, _ = Membership.objects.update_or_create(
            user=self, workspace=workspace, defaults={"role": workspaces.Role(role)}
        )
        self._forget()
        return member

    def leave(self, workspace: Workspace) -> None:
        """End the membership."""
        self.memberships.filter(workspace=workspace).delete()
        self._forget()

    def refresh_from_db(self, *args: Any, **kwargs: Any) -> None:
        self._forget()
        super().refresh_from_db(*args, **kwargs)

    def _forget(self) -> None:
        for known in ("membership_list", "workspaces"):
            self.__dict__.pop(known, None)

    @property
    def has_second_factor(self) -> bool:
        """Return whether a sign-in asks for a code."""
        factor = getattr(self, "second_factor", None)  # Django raises on access if there is none
        return factor is not None and factor.confirmed_at is not None

    @property
    def may_plan(self) -> bool:
        """Return whether the user may upload traces, edit scenarios and start or cancel runs."""
        return self.is_superuser or self.role not in (None, self.Role.VIEWER)

    @property
    def may_approve(self) -> bool:
        """Return whether the user may approve plans."""
        return self.may_administer or self.role == self.Role.APPROVER

    @property
    def may_administer(self) -> bool:
        """Return whether the user may invite people, give roles and remove what others made."""
        return self.is_superuser or self.role == self.Role.ADMIN

    def may_remove(self, owner_id: int | None) -> bool:
        """Return whether the user may delete a thing that ``owner_id`` made."""
        return self.may_administer or (self.may_plan and owner_id == self.pk)
