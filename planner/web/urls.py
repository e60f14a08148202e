"""Addresses of the pages; all but the login ask for a login."""

from django.contrib.auth.views import LogoutView
from django.urls import path
from django.urls.resolvers import URLPattern

from planner.web.errors import View, page
from planner.web.views import account, home, runs, scenarios, traces

app_name = "web"


def at(route: str, view: View, name: str) -> URLPattern:
    return path(route, page(view), name=name)


urlpatterns = [
    path("login/", account.Login.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    at("account/password/", account.PasswordChange.as_view(), "password-change"),
    at("account/token/", account.token, "token"),
    at("", home.home, "home"),
    at("activity/", home.activity, "home-activity"),
    at("traces/", traces.listing, "traces"),
    at("traces/upload/", traces.upload, "trace-upload"),
    at("traces/<str:name>/", traces.detail, "trace"),
    at("traces/<str:name>/delete/", traces.delete, "trace-delete"),
    at("scenarios/", scenarios.listing, "scenarios"),
    at("scenarios/new/", scenarios.new, "scenario-new"),
    at("scenarios/<int:pk>/", scenarios.detail, "scenario"),
    at("scenarios/<int:pk>/run/", scenarios.run, "scenario-run"),
    at("scenarios/<int:pk>/duplicate/", scenarios.duplicate, "scenario-duplicate"),
    at("scenarios/<int:pk>/delete/", scenarios.delete, "scenario-delete"),
    at("scenarios/<int:pk>/download/", scenarios.download, "scenario-download"),
    at("runs/", runs.listing, "runs"),
    at("runs/<int:pk>/", runs.detail, "run"),
    at("runs/<int:pk>/cancel/", runs.cancel, "run-cancel"),
    at("runs/<int:pk>/delete/", runs.delete, "run-delete"),
    at("runs/<int:pk>/result.json", runs.result, "run-result"),
    at("runs/<int:pk>/<str:name>.csv", runs.table, "run-table"),
]
