"""People and what they may do."""

from django.contrib.auth.models import AbstractUser
from django.db import models


class User(AbstractUser):
    """A member of the team. Everyone sees everything; the role says who may change what."""

    class Role(models.TextChoices):
        VIEWER = "viewer", "Viewer: reads"
        PLANNER = "planner", "Planner: uploads, edits and runs"
        APPROVER = "approver", "Approver: also decides on what others propose"
        ADMIN = "admin", "Admin: also removes what others made, and invites people"

    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)

    @property
    def may_plan(self) -> bool:
        """Whether the user may upload traces, edit scenarios and start or cancel runs."""
        return self.is_superuser or self.role != self.Role.VIEWER

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
