"""Route the address that Prometheus scrapes."""

from django.urls import path

from planner.api.views.metrics import metrics

urlpatterns = [path("", metrics, name="metrics")]
