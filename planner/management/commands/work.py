"""`bin/manage work`: the workers of a team deployment, started again when they end."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand

from planner.config.supervisor import Children, Stopped, start_workers
from planner.management.commands.serve import stop_on_signals


class Command(BaseCommand):
    help = "Carry out runs until Ctrl-C: HEADROOM_WORKER_CONCURRENCY of them at once."
    requires_system_checks = ()

    def handle(self, *_: Any, **options: Any) -> None:
        children = Children()
        stop_on_signals(children)
        try:
            with children:
                start_workers(children)
                children.watch()
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")
        except Stopped as problem:
            self.stderr.write(str(problem))
            sys.exit(1)
