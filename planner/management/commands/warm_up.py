"""Compiles the simulator into numba's cache, so that no first run waits for it."""

from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Compile the simulator now, so that the first run need not."
    requires_system_checks = ()

    def handle(self, *_: Any, **__: Any) -> None:
        from simulation.engine.warm import warm_up

        warm_up()
