"""A Celery app with one slow task on the folder queue of HEADROOM_QUEUE_TEST."""

import os
import time
from pathlib import Path

from celery import Celery

folder = Path(os.environ["HEADROOM_QUEUE_TEST"])
app = Celery("queue-test")
app.conf.update(
    broker_transport="planner.config.folder_queue:Transport",
    broker_transport_options={"folder": str(folder / "queue"), "polling_interval": 0.05},
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
)


@app.task(name="mark")
def mark(number: int) -> None:
    """Leave a file named for the number, after a while."""
    time.sleep(0.3)
    (folder / "done" / f"{number}.txt").touch()
