"""docker/compose.yaml: settings and secrets reach the containers, which have few rights.

No engine need be here: variables are put in as Compose does, and what Compose makes of the rest is
its documented behaviour.
"""

import re
from typing import Any

import pytest
import yaml

from planner.config.environment import IN_FILES, worker_count
from tests.platform.conftest import ROOT
from tests.platform.documentation import settings

FOLDER = ROOT / "docker"
IMAGE = "headroom"
OPERATOR = re.compile(r"(\w+)(?:(:[-+]|-)(.*))?", re.S)


def interpolated(text: str, variables: dict[str, str]) -> str:
    """What Compose puts in for ``${NAME}``, ``${NAME-default}``, ``${NAME:-default}`` and
    ``${NAME:+replacement}``, one within another."""
    begin = text.find("${")
    if begin < 0:
        return text
    end, depth = begin + 2, 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    match = OPERATOR.fullmatch(text[begin + 2 : end - 1])
    assert match is not None, f"not understood here: {text}"
    name, operator, other = match.groups()
    value = variables.get(name)
    if operator == ":+":
        value = interpolated(other, variables) if value else ""
    elif (operator == ":-" and not value) or (operator == "-" and value is None):
        value = interpolated(other, variables)
    return text[:begin] + (value or "") + interpolated(text[end:], variables)


def services() -> dict[str, Any]:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    listed: dict[str, Any] = compose["services"]
    return listed


def product() -> dict[str, Any]:
    return {name: service for name, service in services().items() if service["image"] == IMAGE}


def environment(service: dict[str, Any], dotenv: dict[str, str]) -> dict[str, str]:
    """Of a container, where ``docker/.env`` holds these: its file first, then what is written."""
    (file,) = service["env_file"]
    assert file == {"path": ".env", "required": False}
    written = {name: interpolated(str(v), dotenv) for name, v in service["environment"].items()}
    return {name: value for name, value in (dotenv | written).items() if value}


def test_every_documented_setting_reaches_every_container() -> None:
    named = [name for name, place in settings().items() if place == "all"]
    dotenv = {name.replace("...", "TOKEN"): f"of {name}" for name in named}
    assert sorted(product()) == ["migrate", "scheduler", "web", "worker"]
    for name, service in product().items():
        assert dotenv.items() <= environment(service, dotenv).items(), name


def test_what_compose_reads_itself_is_documented() -> None:
    text = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
    read = {match[1] for match in re.finditer(r"\$\{(\w+)", text)}
    places = settings()
    own = {name for name, place in places.items() if place == "compose"}
    of_containers = {name for name, place in places.items() if place == "all"}
    assert read - of_containers - {"POSTGRES_PASSWORD_FILE"} == own


def test_two_lines_are_enough() -> None:
    dotenv = {"POSTGRES_PASSWORD": "pw", "SECRET_KEY": "k" * 32}
    for service in product().values():
        given = environment(service, dotenv)
        assert given["DATABASE_URL"] == "postgresql://headroom:pw@postgres/headroom"
        assert given["REDIS_URL"] == "redis://redis:6379/0"
        assert given["SECRET_KEY"] == dotenv["SECRET_KEY"]


@pytest.mark.parametrize("name", IN_FILES)
def test_each_secret_may_lie_in_a_file_without_an_edit(name: str) -> None:
    """Both of NAME and NAME_FILE are refused, so NAME must stay empty."""
    dotenv = {f"{name}_FILE": f"/run/secrets/{name}"}
    if name == "REDIS_URL":
        dotenv[name] = ""  # a Redis of one's own: README.md
    if name == "DATABASE_URL":
        dotenv["POSTGRES_PASSWORD_FILE"] = "/run/secrets/POSTGRES_PASSWORD"
    for service in product().values():
        given = environment(service, dotenv)
        assert name not in given
        assert given[f"{name}_FILE"] == f"/run/secrets/{name}"
        assert "./secrets:/run/secrets:ro" in service["volumes"]
    postgres = services()["postgres"]
    values = {n: interpolated(v, dotenv) for n, v in postgres["environment"].items()}
    assert values["POSTGRES_PASSWORD"] == ""
    assert values["POSTGRES_PASSWORD_FILE"] == dotenv.get("POSTGRES_PASSWORD_FILE", "")
    assert "./secrets:/run/secrets:ro" in postgres["volumes"]
    assert (FOLDER / "secrets").is_dir(), "the engine would make it, as root"


def test_the_site_is_open_to_this_machine_alone() -> None:
    (port,) = services()["web"]["ports"]
    assert interpolated(port, {}) == "127.0.0.1:8000:8000"
    there = {"HEADROOM_BIND": "0.0.0.0", "HEADROOM_PORT": "80"}
    assert interpolated(port, there) == "0.0.0.0:80:8000"
    assert not any(service.get("ports") for name, service in services().items() if name != "web")


@pytest.mark.parametrize("name", services())
def test_containers_have_no_rights_that_they_do_not_need(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"] and "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert re.fullmatch(r"[0-9]+[mg]", interpolated(service["mem_limit"], {}))
    assert any(place.split(":")[0] == "/tmp" for place in service["tmpfs"])
    if service["image"] != IMAGE:  # the product's image says its user itself
        assert service["user"] in ("postgres", "redis")


def test_the_image_runs_as_nobody_in_particular() -> None:
    steps = (FOLDER / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert [line for line in steps if line.startswith("USER ")][-1] == "USER headroom"


def test_runs_fit_into_their_container() -> None:
    """Also with several workers on one machine: each has a limit of its own."""
    worker = services()["worker"]
    limit = interpolated(worker["mem_limit"], {})
    assert limit.endswith("g")
    run_mb = int(environment(worker, {})["HEADROOM_MAX_RUN_MB"])
    concurrency = 2  # of HEADROOM_WORKER_CONCURRENCY
    assert worker_count(concurrency) * run_mb * 10**6 < int(limit[:-1]) * 2**30


def test_images_have_a_tag_of_one_release() -> None:
    """No digest is written that pin_images.py did not fetch: see tests/platform/test_pins.py."""
    images = {service["image"] for service in services().values()} - {IMAGE}
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    images |= set(re.findall(r"^FROM (\S+)", text, re.M))
    assert len(images) == 3
    for image in images:
        assert re.fullmatch(r"[a-z]+:[0-9]+\.[0-9]+[.0-9]*-[a-z-]+(@sha256:[0-9a-f]{64})?", image)
