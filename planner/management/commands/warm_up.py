"""Compile the simulator into numba's cache, so that the first run does not wait for it."""

from typing import Any

from django.core.management.base import BaseCommand

from planner.config.child_processes import die_with_parent
from planner.services.kernel_compilation import compile_ahead
from planner.services.warm_up import compile_closed_forms


class Command(BaseCommand):
    help = "Compile the simulator now."
    requires_system_checks = ()

    def handle(self, *_: Any, **__: Any) -> None:
        die_with_parent()
        compile_ahead()
        compile_closed_forms()  # what-if uses them for changed limits
