"""Addresses of the pages; all but the login and an invitation ask for a login."""

from django.contrib.auth.views import LogoutView
from django.urls import path
from django.urls.resolvers import URLPattern

from planner.web.errors import View, page
from planner.web.views import (
    account,
    beside,
    calibrations,
    estimate,
    hardware,
    home,
    people,
    profiles,
    runs,
    scenarios,
    sizing,
    sweeps,
    traces,
    whatif,
)

app_name = "web"


def at(route: str, view: View, name: str) -> URLPattern:
    return path(route, page(view), name=name)


urlpatterns = [
    path("login/", account.Login.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("welcome/<uidb64>/<token>/", people.Welcome.as_view(), name="welcome"),
    at("account/password/", account.PasswordChange.as_view(), "password-change"),
    at("account/token/", account.token, "token"),
    at("people/", people.listing, "people"),
    at("people/<str:name>/", people.change, "person-change"),
    at("people/<str:name>/invitation/", people.invite_again, "person-invite"),
    at("", home.home, "home"),
    at("activity/", home.activity, "home-activity"),
    at("traces/", traces.listing, "traces"),
    at("traces/upload/", traces.upload, "trace-upload"),
    at("traces/<str:name>/", traces.detail, "trace"),
    at("traces/<str:name>/map/", traces.read_again, "trace-map"),
    at("traces/<str:name>/delete/", traces.delete, "trace-delete"),
    at("hardware/profiles/", profiles.listing, "profiles"),
    at("hardware/profiles/new/", profiles.new, "profile-new"),
    at("hardware/profiles/<str:name>/", profiles.detail, "profile"),
    at("hardware/profiles/<str:name>/residuals.csv", profiles.residuals, "profile-residuals"),
    at("hardware/profiles/<str:name>/tune/", profiles.tune, "profile-tune"),
    at("hardware/profiles/<str:name>/delete/", profiles.delete, "profile-delete"),
    at("hardware/calibrations/", calibrations.listing, "calibrations"),
    at("hardware/calibrations/new/", calibrations.new, "calibration-new"),
    at("hardware/calibrations/<int:pk>/", calibrations.detail, "calibration"),
    at("hardware/calibrations/<int:pk>/delete/", calibrations.delete, "calibration-delete"),
    at("hardware/gpus/", hardware.gpus, "gpus"),
    at("hardware/gpus/new/", hardware.gpu_edit, "gpu-new"),
    at("hardware/gpus/<str:name>/", hardware.gpu, "gpu"),
    at("hardware/gpus/<str:name>/edit/", hardware.gpu_edit, "gpu-edit"),
    at("hardware/gpus/<str:name>/delete/", hardware.gpu_delete, "gpu-delete"),
    at("hardware/models/", hardware.models, "models"),
    at("hardware/models/new/", hardware.model_edit, "model-new"),
    at("hardware/models/<str:name>/", hardware.model, "model"),
    at("hardware/models/<str:name>/edit/", hardware.model_edit, "model-edit"),
    at("hardware/models/<str:name>/delete/", hardware.model_delete, "model-delete"),
    at("hardware/import/", hardware.add_file, "hardware-import"),
    at("hardware/prices/", hardware.prices, "prices"),
    at("hardware/carbon/", hardware.carbon, "carbon"),
    at("estimate/", estimate.page, "estimate"),
    at("estimate/rows/", estimate.rows, "estimate-rows"),
    at("estimate/keep/", estimate.keep, "estimate-keep"),
    at("scenarios/", scenarios.listing, "scenarios"),
    at("scenarios/new/", scenarios.new, "scenario-new"),
    at("scenarios/<int:pk>/", scenarios.detail, "scenario"),
    at("scenarios/<int:pk>/run/", scenarios.run, "scenario-run"),
    at("scenarios/<int:pk>/duplicate/", scenarios.duplicate, "scenario-duplicate"),
    at("scenarios/<int:pk>/delete/", scenarios.delete, "scenario-delete"),
    at("scenarios/<int:pk>/download/", scenarios.download, "scenario-download"),
    at("sweeps/", sweeps.listing, "sweeps"),
    at("sweeps/new/", sweeps.new, "sweep-new"),
    at("sweeps/<int:pk>/", sweeps.detail, "sweep"),
    at("sweeps/<int:pk>/cancel/", sweeps.cancel, "sweep-cancel"),
    at("sweeps/<int:pk>/delete/", sweeps.delete, "sweep-delete"),
    at("size/", sizing.size, "size"),
    at("pd-ratio/", sizing.pd_ratio, "pd-ratio"),
    at("runs/", runs.listing, "runs"),
    at("runs/compare/", beside.compare, "runs-compare"),
    at("runs/<int:pk>/", runs.detail, "run"),
    at("runs/<int:pk>/what-if/", whatif.panel, "run-what-if"),
    at("runs/<int:pk>/what-if/replay/", whatif.replay, "run-what-if-replay"),
    at("runs/<int:pk>/cancel/", runs.cancel, "run-cancel"),
    at("runs/<int:pk>/delete/", runs.delete, "run-delete"),
    at("runs/<int:pk>/export/", runs.export, "run-export"),
    at("runs/<int:pk>/result.json", runs.result, "run-result"),
    at("runs/<int:pk>/<str:name>.csv", runs.table, "run-table"),
    at("runs/<int:pk>/<str:name>.parquet", runs.parquet, "run-parquet"),
]
