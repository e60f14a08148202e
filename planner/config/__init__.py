"""Configure the settings, URLs and entry points: web server, worker, scheduler."""

# The Celery app must exist before a task is sent, whichever process sends it.
from planner.config.celery import app as celery_app
