"""Compile the simulator into numba's cache, so that the first run does not wait for it."""

from typing import Any

from planner.config.child_processes import die_with_parent
from planner.management.help import HelpedCommand
from planner.services.kernel_compilation import compile_ahead
from planner.services.warm_up import compile_closed_forms


class Command(HelpedCommand):
    help = "Compile the simulator now."
    examples = ("warm_up",)

    def handle(self, *_: Any, **__: Any) -> None:
        die_with_parent()
        compile_ahead()
        compile_closed_forms()  # what-if uses them for changed limits
