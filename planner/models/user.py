"""People and what they may do."""

from django.contrib.auth.models import AbstractUser
from django.db import models


class User(AbstractUser):
    """A member of the team. Everyone sees everything; the role says who may change what."""

    class Role(models.TextChoices):
        VIEWER = "viewer", "Viewer: reads"
        PLANNER = "planner", "Planner: uploads, edits and runs"
        ADMIN = "admin", "Admin: also removes what others made"

    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)

    @property
    def may_plan(self) -> bool:
        """Whether the user may upload traces, edit scenarios and start or cancel runs."""
        return self.is_superuser or self.role in (self.Role.PLANNER, self.Role.ADMIN)

    def may_remove(self, owner_id: int | None) -> bool:
        """Whether the user may delete a thing that ``owner_id`` made."""
        if self.is_superuser or self.role == self.Role.ADMIN:
            return True
        return self.may_plan and owner_id == self.pk
