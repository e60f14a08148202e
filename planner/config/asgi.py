"""The ASGI application, for servers that want one."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")

application = get_asgi_application()
