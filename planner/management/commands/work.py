"""``bin/manage work``: run the workers of a team deployment, and restart those that end."""

import sys
from typing import Any

from django.conf import settings

from planner.config.environment import container_mb, worker_count
from planner.config.supervisor import Children, Stopped, start_workers
from planner.management.commands.serve import stop_on_signals
from planner.management.help import HelpedCommand


def runs_exceed_container() -> str:
    """Return a message if the runs of all workers may exceed the container's memory, else ""."""
    container_limit_mb = container_mb()
    run_mb = settings.HEADROOM_MAX_RUN_MB
    workers = worker_count(settings.HEADROOM_WORKER_CONCURRENCY)
    if container_limit_mb is None or run_mb * workers <= container_limit_mb:
        return ""
    return (
        f"HEADROOM_MAX_RUN_MB={run_mb} for each of {workers} workers is more than the "
        f"{container_limit_mb:,} MB of this container: raise its memory limit, or lower "
        "HEADROOM_MAX_RUN_MB or HEADROOM_WORKER_CONCURRENCY."
    )


class Command(HelpedCommand):
    help = "Run workers until Ctrl-C, HEADROOM_WORKER_CONCURRENCY at once."
    examples = ("work",)

    def handle(self, *_: Any, **options: Any) -> None:
        """Run the workers until a signal stops them; exit if their runs exceed the memory."""
        memory_problem = runs_exceed_container()
        if memory_problem:
            self.stderr.write(memory_problem)
            sys.exit(2)
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
