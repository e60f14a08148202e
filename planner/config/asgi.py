"""The ASGI application, for servers that want one."""

import os

from django.core.asgi import get_asgi_application

from planner.config.start import check_migrations_known, exit_with_sentence

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")

with exit_with_sentence():
    application = get_asgi_application()
    check_migrations_known()
