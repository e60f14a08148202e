"""Addresses under /api/v1/."""

from django.urls import path, re_path
from drf_spectacular.views import SpectacularAPIView

from planner.api.views import (
    accounts,
    beside,
    configure,
    docs,
    estimates,
    hardware,
    in_force,
    people,
    profiles,
    runs,
    scenarios,
    sweeps,
    traces,
    verbs,
    whatif,
    why,
)

app_name = "api"

urlpatterns = [
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path("docs/", docs.docs, name="docs"),
    path("token/", accounts.LoginView.as_view(), name="token"),
    path("me/", accounts.MeView.as_view(), name="me"),
    path("me/token/", accounts.MyTokenView.as_view(), name="my-token"),
    path("users/", people.PersonListView.as_view(), name="people"),
    path("users/<str:name>/", people.PersonView.as_view(), name="person"),
    path("users/<str:name>/invitation/", people.InvitationView.as_view(), name="invitation"),
    path("traces/", traces.TraceListView.as_view(), name="traces"),
    path("traces/<str:name>/", traces.TraceView.as_view(), name="trace"),
    path("traces/<str:name>/demand/", traces.TraceDemandView.as_view(), name="trace-demand"),
    path("traces/<str:name>/reading/", traces.TraceReadingView.as_view(), name="trace-reading"),
    path(
        "traces/<str:name>/character/",
        traces.TraceCharacterView.as_view(),
        name="trace-character",
    ),
    path("scenarios/", scenarios.ScenarioListView.as_view(), name="scenarios"),
    path("scenarios/<str:scenario>/", scenarios.ScenarioView.as_view(), name="scenario"),
    path(
        "scenarios/<str:scenario>/runs/",
        scenarios.ScenarioRunsView.as_view(),
        name="scenario-runs",
    ),
    path("gpus/", hardware.GpuListView.as_view(), name="gpus"),
    path("gpus/<str:name>/", hardware.GpuView.as_view(), name="gpu"),
    path("models/", hardware.ModelListView.as_view(), name="models"),
    path("models/<str:name>/", hardware.ModelView.as_view(), name="model"),
    path("hardware/", hardware.HardwareFileView.as_view(), name="hardware"),
    path("prices/", hardware.PriceListView.as_view(), name="prices"),
    path("carbon/", hardware.CarbonListView.as_view(), name="carbon"),
    path("profiles/", profiles.ProfileListView.as_view(), name="profiles"),
    path("profiles/<str:name>/", profiles.ProfileView.as_view(), name="profile"),
    path(
        "profiles/<str:name>/versions/",
        profiles.ProfileVersionsView.as_view(),
        name="profile-versions",
    ),
    path(
        "profiles/<str:name>/checks/", profiles.ProfileChecksView.as_view(), name="profile-checks"
    ),
    path(
        "profiles/<str:name>/residuals/",
        profiles.ProfileResidualsView.as_view(),
        name="profile-residuals",
    ),
    path("calibrations/", profiles.CalibrationListView.as_view(), name="calibrations"),
    path("calibrations/<int:number>/", profiles.CalibrationView.as_view(), name="calibration"),
    path(
        "calibrations/<int:number>/fits/",
        profiles.CalibrationFitsView.as_view(),
        name="calibration-fits",
    ),
    path(
        "calibrations/<int:number>/comparisons/",
        profiles.CalibrationComparisonsView.as_view(),
        name="calibration-comparisons",
    ),
    path("observations/", profiles.ObservationsView.as_view(), name="observations"),
    path("estimates/", estimates.EstimateView.as_view(), name="estimates"),
    path("estimates/rows/", estimates.EstimateRowsView.as_view(), name="estimate-rows"),
    path("configure/", configure.ConfigureView.as_view(), name="configure"),
    path(
        "configure/scenario/", configure.ConfigureScenarioView.as_view(), name="configure-scenario"
    ),
    path("ingest/", traces.IngestView.as_view(), name="ingest"),
    *(path(f"{kind}/", view.as_view(), name=kind) for kind, view in verbs.VIEWS.items()),
    path("sweeps/", sweeps.SweepListView.as_view(), name="sweeps"),
    path("sweeps/<int:number>/", sweeps.SweepView.as_view(), name="sweep"),
    path("sweeps/<int:number>/cancel/", sweeps.SweepCancelView.as_view(), name="sweep-cancel"),
    path("plan-in-force/", in_force.InForceView.as_view(), name="in-force"),
    path("runs/", runs.RunListView.as_view(), name="runs"),
    path("runs/compare/", beside.RunsBesideView.as_view(), name="runs-beside"),
    path("runs/<int:run_id>/", runs.RunView.as_view(), name="run"),
    path("runs/<int:run_id>/why/", why.RunWhyView.as_view(), name="run-why"),
    path("runs/<int:run_id>/what-if/", whatif.RunWhatIfView.as_view(), name="run-what-if"),
    path("runs/<int:run_id>/what-if/replay/", whatif.RunReplayView.as_view(), name="run-replay"),
    path("runs/<int:run_id>/cancel/", runs.RunCancelView.as_view(), name="run-cancel"),
    path("runs/<int:run_id>/results/", runs.RunResultsView.as_view(), name="run-results"),
    path("runs/<int:run_id>/export/", runs.RunExportView.as_view(), name="run-export"),
    path("runs/<int:run_id>/savings/", runs.RunSavingsView.as_view(), name="run-savings"),
    path(
        "runs/<int:run_id>/sensitivity/",
        runs.RunSensitivityView.as_view(),
        name="run-sensitivity",
    ),
    path("runs/<int:run_id>/sweeps/<str:by>/", runs.RunSweepView.as_view(), name="run-sweep"),
    path("runs/<int:run_id>/tables/", runs.RunTablesView.as_view(), name="run-tables"),
    path("runs/<int:run_id>/tables/<str:table>/", runs.RunTableView.as_view(), name="run-table"),
    re_path("", docs.nothing_here),
]
