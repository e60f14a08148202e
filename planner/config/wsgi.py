"""The WSGI application, as gunicorn loads it before it forks: with all its pages, once for all web
workers."""

import gc
import os
from importlib import import_module

from django.conf import settings
from django.core.wsgi import get_wsgi_application

from planner.config.start import check_migrations_known, exit_with_sentence

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")

gc.disable()  # nothing that is imported is garbage: looking for it takes a fifth of the time
with exit_with_sentence():
    application = get_wsgi_application()
    check_migrations_known()
import_module(settings.ROOT_URLCONF)
gc.freeze()  # nor ever becomes it: the workers share these pages of memory
gc.enable()
