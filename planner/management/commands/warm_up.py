"""Compiles the simulator into numba's cache, so that no first run waits for it."""

import shutil
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from planner.config.numba_cache import numba_cache_dir


class Command(BaseCommand):
    help = "Compile the simulator now, so that the first run need not."
    requires_system_checks = ()

    def handle(self, *_: Any, **__: Any) -> None:
        from simulation.engine import warm_up

        warm_up()
        current = numba_cache_dir(settings.HEADROOM_DATA_DIR, settings.BASE_DIR)
        for cache in current.parent.glob("*"):
            if cache != current:  # compiled from sources that are no more
                shutil.rmtree(cache)
