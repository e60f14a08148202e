"""Map every address of the product to the part that answers it."""

from django.urls import include, path

from planner.api.views.metrics import metrics
from planner.config.health import health, live, ready

handler500 = "planner.web.errors.server_error"

urlpatterns = [
    path("health/", health, name="health"),
    path("healthz", live, name="live"),
    path("readyz", ready, name="ready"),
    path("metrics", metrics, name="metrics"),
    path("api/v1/", include("planner.api.urls", namespace="api")),
    path("", include("planner.web.urls", namespace="web")),
]
