#!/usr/bin/env python3
"""Pin the base images of Dockerfile and compose.yaml by digest.

    tools/pin_images.py [--registry https://registry-1.docker.io] [--folder docker]

It fetches the manifest of each tag from the registry, computes its SHA-256, and writes it after the
tag: ``postgres:15.14-bookworm@sha256:...``. Run it again to move to the tag's newest image. It
writes nothing unless it fetched every manifest. It needs only the standard library.
"""

import argparse
import hashlib
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

REGISTRY = "https://registry-1.docker.io"
FOLDER = Path(__file__).parents[1] / "docker"
FILES = ("Dockerfile", "compose.yaml")
IMAGE = re.compile(
    r"^(?P<before>FROM |\s+image: )(?P<name>[a-z0-9/._-]+):(?P<tag>[A-Za-z0-9._-]+)"
    r"(?:@sha256:[0-9a-f]{64})?",
    re.MULTILINE,
)
MANIFESTS = (  # multi-platform manifests first: their digest is valid for each platform
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
MOST_BYTES = 4_000_000
TIMEOUT_S = 30.0


class PinError(Exception):
    """One sentence that says which image could not be pinned, and why."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--registry", default=REGISTRY, help=f"address ({REGISTRY})")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the files")
    args = parser.parse_args()
    try:
        for image, digest in pin(args.folder, args.registry.rstrip("/")).items():
            print(f"{image}@{digest}")
    except (PinError, OSError) as problem:
        sys.exit(f"{problem} No file was changed.")


def pin(folder: Path, registry: str) -> dict[str, str]:
    """Write the digest of every image into the files; return them by ``NAME:TAG``."""
    texts = {folder / name: (folder / name).read_text(encoding="utf-8") for name in FILES}
    found = [match for text in texts.values() for match in IMAGE.finditer(text)]
    images = sorted({match.group("name", "tag") for match in found})
    digests = {f"{name}:{tag}": fetched_digest(registry, name, tag) for name, tag in images}
    for path, text in texts.items():
        path.write_text(
            IMAGE.sub(lambda match: _with_digest(match, digests), text), encoding="utf-8"
        )
    return digests


def _with_digest(match: re.Match[str], digests: dict[str, str]) -> str:
    """Return the text of an IMAGE with its digest."""
    image = f"{match['name']}:{match['tag']}"
    return f"{match['before']}{image}@{digests[image]}"


def fetched_digest(registry: str, name: str, tag: str) -> str:
    """Return the SHA-256 of the manifest that the registry has under a tag.

    Raise PinError if it returns none, or if its content does not match the stated digest.
    """
    repository = name if "/" in name else f"library/{name}"
    url = f"{registry}/v2/{repository}/manifests/{tag}"
    headers = {"Accept": ", ".join(MANIFESTS)}
    try:
        try:
            body, stated = _get(url, headers)
        except urllib.error.HTTPError as refused:
            if refused.code != 401:
                raise
            token = _token(refused.headers.get("WWW-Authenticate", ""))
            body, stated = _get(url, headers | {"Authorization": f"Bearer {token}"})
        if json.loads(body).get("schemaVersion") != 2:
            raise PinError(f"{name}:{tag}: {registry} gave no manifest.")
    except (OSError, ValueError, AttributeError) as problem:  # URLError is an OSError
        raise PinError(f"{name}:{tag}: {registry} gave no manifest ({problem}).") from None
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if stated not in ("", digest):
        raise PinError(f"{name}:{tag}: {registry} gave a manifest whose digest is not {stated}.")
    return digest


def _get(url: str, headers: dict[str, str]) -> tuple[bytes, str]:
    """Return the body and the digest that the registry states, or "" if it states none."""
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return response.read(MOST_BYTES), response.headers.get("Docker-Content-Digest", "")


def _token(challenge: str) -> str:
    """Return a token from the address in a registry's ``WWW-Authenticate`` header."""
    parameters = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = parameters.pop("realm", "")
    if not realm.startswith(("https://", "http://")):
        raise ValueError("it wants a sign-in")
    body, _ = _get(f"{realm}?{urllib.parse.urlencode(parameters)}", {})
    answer = json.loads(body)
    return str(answer.get("token") or answer["access_token"])


if __name__ == "__main__":
    main()
