"""Store users, what their roles allow, and how people and scripts sign in."""

from __future__ import annotations

from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib.auth.models import AbstractUser, UserManager
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import models
from django.utils.functional import cached_property

from planner.models import workspace as workspaces
from planner.models.workspace import InWorkspace, Membership, Workspace, current_workspace


class WorkspaceUserManager(UserManager["User"]):
    """A manager that can also make a new user a member of the current workspace."""

    use_in_migrations = False

    def create_user(
        self, username: str, email: str | None = None, password: str | None = None, **fields: Any
    ) -> User:
        """Create a user; with ``role``, a member of the current workspace.

        ``password`` None: the user cannot log in with one yet.
        """
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

    # "": the time zone of the workspace.
    time_zone = models.CharField(max_length=64, blank=True, default="", db_default="")

    objects = WorkspaceUserManager()  # type: ignore[misc]

    @cached_property
    def membership_list(self) -> list[Membership]:
        """Return the memberships, loaded once per object."""
        return list(self.memberships.select_related("workspace"))

    @property
    def role(self) -> workspaces.Role | None:
        """Return the role in the current workspace; None if the user is no member."""
        return self.role_in(current_workspace()) if self.membership_list else None

    def role_in(self, workspace: Workspace) -> workspaces.Role | None:
        """Return the role in a workspace; None if the user is no member."""
        roles = {member.workspace_id: member.role for member in self.membership_list}
        return workspaces.Role(roles[workspace.pk]) if workspace.pk in roles else None

    @cached_property
    def workspaces(self) -> list[Workspace]:
        """Return the workspaces that the user may enter, the oldest first."""
        if self.is_superuser:
            return list(Workspace.objects.all())
        return [membership.workspace for membership in self.membership_list]

    @property
    def here(self) -> Workspace | None:
        """Return the current workspace, for pages; None for users who belong to none."""
        return current_workspace() if self.workspaces else None

    @property
    def zone(self) -> ZoneInfo:
        """Return the time zone in which the user sees times."""
        return ZoneInfo(self.time_zone or (self.here.time_zone if self.here else "UTC"))

    def join(self, workspace: Workspace, role: str) -> Membership:
        """Add the user to the workspace, or change their role there."""
        member, _ = Membership.objects.update_or_create(
            user=self, workspace=workspace, defaults={"role": workspaces.Role(role)}
        )
        self._forget()
        return member

    def leave(self, workspace: Workspace) -> None:
        """End the user's membership of the workspace."""
        self.memberships.filter(workspace=workspace).delete()
        self._forget()

    def refresh_from_db(self, *args: Any, **kwargs: Any) -> None:
        self._forget()
        super().refresh_from_db(*args, **kwargs)

    def _forget(self) -> None:
        """Drop the cached memberships and workspaces, so that they are read again."""
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
        """Return whether the user may invite people, give roles and remove others' objects."""
        return self.is_superuser or self.role == self.Role.ADMIN

    def may_remove(self, owner_id: int | None) -> bool:
        """Return whether the user may delete an object; ``owner_id`` None: it has no owner."""
        return self.may_administer or (self.may_plan and owner_id == self.pk)


class SecondFactor(models.Model):
    """The second factor of an account; like the password, it is not per workspace."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="second_factor"
    )
    encrypted_key = models.TextField()  # the key that the user's app shares
    # None: not confirmed, so sign-ins do not ask for it.
    confirmed_at = models.DateTimeField(null=True, blank=True)
    # The time step (Unix time / 30 s) of the last used code, so that no code works twice.
    last_step = models.BigIntegerField(default=0)
    recovery = models.JSONField(default=list)  # SHA-256 of the unused codes

    def __str__(self) -> str:
        return f"of {self.user}"


class ExternalIdentity(models.Model):
    """The id (subject) of a user at an identity provider, which stays when names change there."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="identities"
    )
    issuer = models.URLField(max_length=300)
    subject = models.CharField(max_length=255)  # the limit of OpenID Connect
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="identity_once")]

    def __str__(self) -> str:
        return f"{self.subject} of {self.issuer}"


class AttemptWindow(models.Model):
    """The attempts of the last minute at one user name, from one network or on one account.

    They are in the database, not in the cache: a locked row makes the count exact when attempts are
    made in parallel.
    """

    # SHA-256 of the kind of attempt and its target.
    key = models.CharField(max_length=64, primary_key=True)
    moments = models.JSONField(default=list)  # s since the epoch, the oldest first
    newest_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{len(self.moments)} attempts until {self.newest_at:%Y-%m-%d %H:%M:%S}"


class Session(AbstractBaseSession):
    """A session of Django, stored under a hash of its key, so that the database opens none."""

    session_key = models.CharField(max_length=64, primary_key=True)  # SHA-256, in hexadecimal
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="sessions"
    )  # None: not signed in, or the second factor is missing
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField()  # rounded: see services.sessions.SEEN_INTERVAL
    address = models.CharField(max_length=45, blank=True)  # last network address

    class Meta:
        ordering = ["-last_used_at"]

    def __str__(self) -> str:
        return f"Session of {self.created_at:%Y-%m-%d %H:%M} UTC, last used from {self.address}"


class ApiToken(InWorkspace):
    """An API token of a person for one workspace and a limited time.

    It allows only reading, or all that the person may do. The token is shown once. Only its hash is
    stored.
    """

    class Scope(models.TextChoices):
        ALL = "all", "Everything that I may do"
        READ = "read", "Read-only"

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens"
    )
    name = models.CharField(max_length=60)
    scope = models.CharField(max_length=8, choices=Scope.choices, default=Scope.ALL)
    sha256 = models.CharField(max_length=64, unique=True)  # of the token, in hexadecimal
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return self.name
