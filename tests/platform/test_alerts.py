"""Alerts: the chart's are those of docker/, each is about a metric that there is, and fires."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client

from tests.platform.test_chart import objects

RULES = Path(__file__).parents[2] / "docker/alerts.yml"
# What has to happen within a quarter of an hour for each to fire: by how much its series grows a
# minute, or what it shows.
FIRES = {
    "HeadroomSignInsRefused": ('headroom_security_events_total{event="sign-in-refused"}', "0+4x30"),
    "HeadroomRefusedOften": ('headroom_security_events_total{event="refused-often"}', "0x20 1x9"),
    "HeadroomNotAllowed": ('headroom_refused_total{status="404",who="person"}', "0+9x30"),
    "HeadroomStrangers": ('headroom_refused_total{status="401",who="stranger"}', "0+90x30"),
    "HeadroomTooManyRequests": ('headroom_refused_total{status="429",who="person"}', "0+2x30"),
    "HeadroomSecondFactorEnded": (
        'headroom_security_events_total{event="second-factor-ended"}',
        "3x20 4x9",
    ),
    "HeadroomInstallationAdminMade": (
        'headroom_security_events_total{event="installation-admin-made"}',
        "1x20 2x9",
    ),
    "HeadroomManyTokens": ('headroom_security_events_total{event="token-made"}', "0+3x30"),
    "HeadroomRunsWait": ('headroom_runs_oldest_seconds{state="waiting"}', "2000x30"),
}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def test_the_chart_has_the_same() -> None:
    made = objects(alerts__enabled=True)["PrometheusRule", "try"]
    assert made["spec"]["groups"] == yaml.safe_load(RULES.read_text())["groups"]


@pytest.mark.django_db
def test_each_is_about_something_that_is_there(settings: Any) -> None:
    """A name or an event that nothing exports would never fire."""
    settings.HEADROOM_METRICS_OPEN = True
    text = Client().get("/metrics").content.decode()
    for rule in rules():
        names = set(re.findall(r"headroom_\w+", rule["expr"]))
        assert names and all(f"# TYPE {name} " in text for name in names), rule["alert"]
        for event in re.findall(r'event="([^"]+)"', rule["expr"]):
            assert f'event="{event}"' in text, rule["alert"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here")
def test_promtool_takes_them_and_each_fires_for_its_own_reason(tmp_path: Path) -> None:
    assert set(FIRES) == {rule["alert"] for rule in rules()}
    (tmp_path / "alerts.yml").write_text(RULES.read_text())
    by_name = {rule["alert"]: rule for rule in rules()}
    tests = []
    for alert, (series, values) in FIRES.items():
        fired = {
            "exp_labels": by_name[alert]["labels"],
            "exp_annotations": by_name[alert]["annotations"],
        }
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": series, "values": values}],
                "alert_rule_test": [
                    {
                        "eval_time": "28m",
                        "alertname": other,
                        "exp_alerts": [fired] if other == alert else [],
                    }
                    for other in FIRES
                ],
            }
        )
    (tmp_path / "tests.yml").write_text(
        yaml.safe_dump({"rule_files": ["alerts.yml"], "tests": tests})
    )
    for what in (["check", "rules", "alerts.yml"], ["test", "rules", "tests.yml"]):
        done = subprocess.run(["promtool", *what], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
