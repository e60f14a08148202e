"""tools/pin_images.py writes only digests of manifests that it has fetched."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_http import Handler, serving
from tests.platform.conftest import ROOT

FILES = ("Dockerfile", "compose.yaml")
DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})")


class Registry(Handler):
    """As Docker Hub answers: a token for whoever asks, then a manifest of several platforms."""

    lies = False
    lacks = ""

    def do_GET(self) -> None:
        if self.path.startswith("/token?"):
            self._document(200, {"token": "t0ken"})
        elif self.headers.get("Authorization") != "Bearer t0ken":
            here = f"http://{self.headers['Host']}/token"
            realm = f'Bearer realm="{here}",service="s",scope="pull"'
            self.answer(401, headers={"WWW-Authenticate": realm})
        elif self.lacks and self.lacks in self.path:
            self._document(404, {"errors": [{"code": "MANIFEST_UNKNOWN"}]})
        else:
            self._document(200, {"schemaVersion": 2, "manifests": [], "of": self.path})

    def _document(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        digest = hashlib.sha256(b"another" if self.lies else body).hexdigest()
        self.answer(status, body, {"Docker-Content-Digest": f"sha256:{digest}"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        text = (ROOT / "docker" / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(DIGEST.sub("", text), encoding="utf-8")
    return tmp_path


@pytest.fixture
def registry() -> Iterator[str]:
    with serving(Registry) as address:
        yield f"http://{address}"


def pin(folder: Path, registry: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "tools/pin_images.py", "--registry", registry, "--folder", folder],
        cwd=ROOT, capture_output=True, text=True, env={"no_proxy": "*", "PATH": ""},
    )  # fmt: skip


def test_every_image_gets_the_digest_of_its_manifest(folder: Path, registry: str) -> None:
    before = {name: (folder / name).read_text(encoding="utf-8") for name in FILES}
    done = pin(folder, registry)
    assert done.returncode == 0, done.stderr
    pinned = dict(line.split("@") for line in done.stdout.splitlines())
    assert {image.partition(":")[0] for image in pinned} == {"python", "postgres", "redis"}
    for image, digest in pinned.items():
        name, _, tag = image.partition(":")
        path = f"/v2/library/{name}/manifests/{tag}"
        body = json.dumps({"schemaVersion": 2, "manifests": [], "of": path}).encode()
        assert digest == f"sha256:{hashlib.sha256(body).hexdigest()}"
    after = {name: (folder / name).read_text(encoding="utf-8") for name in FILES}
    assert {name: DIGEST.sub("", text) for name, text in after.items()} == before
    assert len(DIGEST.findall(after["Dockerfile"])) == 2
    assert len(DIGEST.findall(after["compose.yaml"])) == 2
    assert pin(folder, registry).returncode == 0  # again: the same
    assert {name: (folder / name).read_text(encoding="utf-8") for name in FILES} == after


@pytest.mark.parametrize("fault", ["lies", "lacks", "nobody"])
def test_nothing_is_written_that_was_not_fetched(
    folder: Path, registry: str, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    before = {name: (folder / name).read_text(encoding="utf-8") for name in FILES}
    if fault == "lies":
        monkeypatch.setattr(Registry, "lies", True)
    elif fault == "lacks":
        monkeypatch.setattr(Registry, "lacks", "redis")  # the last to be asked for
    done = pin(folder, "http://127.0.0.1:9" if fault == "nobody" else registry)
    assert done.returncode == 1 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "No file was changed." in done.stderr
    assert {name: (folder / name).read_text(encoding="utf-8") for name in FILES} == before


def test_a_file_that_is_not_there_is_a_sentence(folder: Path, registry: str) -> None:
    shutil.rmtree(folder)
    done = pin(folder, registry)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
