"""Create the WSGI application, which gunicorn loads before it forks.

All pages, and the Celery app that queues work, are loaded once for all web workers.
"""

import gc
import os
from importlib import import_module

from django.conf import settings
from django.core.wsgi import get_wsgi_application

from planner.config.startup_checks import check_migrations, exit_with_sentence

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")

gc.disable()  # imports leave no garbage, and collecting takes a fifth of their time
with exit_with_sentence():
    application = get_wsgi_application()
    check_migrations()
for module in (settings.ROOT_URLCONF, "planner.config.celery"):
    import_module(module)
gc.freeze()  # keeps these objects out of collections, so that workers share their memory pages
gc.enable()
