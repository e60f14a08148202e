"""People and what they may do."""

from __future__ import annotations

from typing import Any, TypeAlias

from django.contrib.auth.models import AbstractUser, UserManager
from django.utils.functional import cached_property

from planner.models import workspace as workspaces
from planner.models.workspace import Membership, Workspace, current_workspace


class People(UserManager["User"]):
    """Also makes somebody a member of the current workspace, where a role in it is given."""

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
    """Somebody with a login. What they may do is said by their role in the current workspace; a
    superuser, who looks after the installation, may do everything in each."""

    Role: TypeAlias = workspaces.Role

    objects = People()  # type: ignore[misc]

    @cached_property
    def held(self) -> list[Membership]:
        """Their memberships; asked for once in a request."""
        return list(self.memberships.select_related("workspace"))

    @property
    def role(self) -> workspaces.Role | None:
        """In the current workspace; None of who is no member of it."""
        if not self.held:
            return None
        here = current_workspace().pk
        return next(
            (
                workspaces.Role(membership.role)
                for membership in self.held
                if membership.workspace_id == here
            ),
            None,
        )

    @cached_property
    def workspaces(self) -> list[Workspace]:
        """Those they may enter, the oldest first."""
        if self.is_superuser:
            return list(Workspace.objects.all())
        return [membership.workspace for membership in self.held]

    @property
    def here(self) -> Workspace | None:
        """The current workspace, for pages; None of who belongs to none."""
        return current_workspace() if self.workspaces else None

    def join(self, workspace: Workspace, role: str) -> Membership:
        """Become a member, or one with another role."""
        member, _ = Membership.objects.update_or_create(
            user=self, workspace=workspace, defaults={"role": workspaces.Role(role)}
        )
        self._forget()
        return member

    def leave(self, workspace: Workspace) -> None:
        """Be a member no more."""
        self.memberships.filter(workspace=workspace).delete()
        self._forget()

    def refresh_from_db(self, *args: Any, **kwargs: Any) -> None:
        self._forget()
        super().refresh_from_db(*args, **kwargs)

    def _forget(self) -> None:
        for known in ("held", "workspaces"):
            self.__dict__.pop(known, None)

    @property
    def has_second_factor(self) -> bool:
        """Whether a sign-in asks for a code."""
        factor = getattr(self, "second_factor", None)  # without one Django raises on access
        return factor is not None and factor.confirmed_at is not None

    @property
    def may_plan(self) -> bool:
        """Whether the user may upload traces, edit scenarios and start or cancel runs."""
        return self.is_superuser or self.role not in (None, self.Role.VIEWER)

    @property
    def may_approve(self) -> bool:
        """Whether the user may decide what takes effect."""
        return self.may_administer or self.role == self.Role.APPROVER

    @property
    def may_administer(self) -> bool:
        """Whether the user may invite people, give roles and remove what others made."""
        return self.is_superuser or self.role == self.Role.ADMIN

    def may_remove(self, owner_id: int | None) -> bool:
        """Whether the user may delete a thing that ``owner_id`` made."""
        return self.may_administer or (self.may_plan and owner_id == self.pk)
