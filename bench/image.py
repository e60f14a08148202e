"""The image without an engine: the steps of docker/Dockerfile in roots of their own, then started.

    python -m bench.image [--json]

Needs root on Linux, for mounts of its own (``unshare``) and ``chroot``. Each stage has an empty
root into which this machine's system (/usr, the interpreter, certificates) is mounted to be read
only, in place of the base image; of this checkout it sees what COPY puts there and nothing else.
Then migrations, web, worker and scheduler are started in it as compose does, without rights and on
a root that is mounted read-only but for /data and /tmp, on PostgreSQL and Redis of the bench's own.

- ``build_seconds``: all steps, packages from pip's cache or the index; ``compiled_mb`` of them.
- ``web_seconds``, ``worker_seconds``: from the start until it is ready.
- ``app_mb``: what /app takes.
- ``user``: who all of it runs as; ``page``: status of the page to sign in, ``style`` of its CSS.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.product import ROOT

SYSTEM = ("usr", "bin", "sbin", "lib", "lib64")
ETC = ("passwd", "group", "shadow", "hosts", "resolv.conf", "nsswitch.conf", "ld.so.cache", "ssl",
       "ld.so.conf", "ld.so.conf.d", "login.defs", "ca-certificates", "localtime", "pip.conf",
       "pam.d", "default", "skel")  # fmt: skip
PIP = ("PIP_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY")
READY_S = 300.0  # on a machine that has much else to do
SECRET = "a key of this bench alone, for no other use than its own start"


@dataclass
class Stage:
    """One FROM: its root, and what later steps and the start go by."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "root"
    entry: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def words(self, command: list[str]) -> list[str]:
        inside = f"cd {shlex.quote(self.folder)} && exec {shlex.join(command)}"
        return ["chroot", f"--userspec={self._ids()}", str(self.root), "/bin/sh", "-c", inside]

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name.startswith(PIP)}
        home = {"HOME": "/root" if self.user == "root" else f"/home/{self.user}", "LANG": "C.UTF-8"}
        path = f"{Path(sys.base_prefix) / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, **home, **kept, **self.env, **more}

    def run(self, line: str) -> None:
        words = self.words(["/bin/sh", "-ec", line])
        subprocess.run(words, env=self.environment(), check=True, stdout=sys.stderr)

    def _ids(self) -> str:
        """Return user and group by the image's /etc/passwd, which chroot does not read."""
        for line in (self.root / "etc/passwd").read_text(encoding="utf-8").splitlines():
            name, _, number, group, *_ = line.split(":")
            if name == self.user:
                return f"{number}:{group}"
        raise SystemExit(f"The Dockerfile's USER {self.user} is nobody that its steps have made.")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(measure(Path(args.inside))))
        return
    if os.geteuid():
        raise SystemExit("It mounts and changes its root: call it as root, on Linux.")
    folder = Path(tempfile.mkdtemp(prefix="headroom-image-"))
    folder.chmod(0o755)  # who is not root goes through
    mounted_apart = ["unshare", "--mount", "--propagation=private"]
    inside = [sys.executable, "-m", "bench.image", "--inside", str(folder)]
    try:
        done = subprocess.run(
            [*mounted_apart, *inside], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # mounts ended with their process
    if done.returncode:
        raise SystemExit("The steps above failed.")
    figures = json.loads(done.stdout)
    print(json.dumps(figures) if args.json else json.dumps(figures, indent=2))


def measure(folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    stage = built(folder)
    seconds = time.monotonic() - began
    app = stage.root / "app"
    figures = {
        "build_seconds": round(seconds, 1),
        "compiled_mb": _megabytes(app / "compiled"),
        "app_mb": _megabytes(app),
    }
    from bench.servers import servers

    with servers():
        return figures | start_image(stage)


def built(folder: Path) -> Stage:
    """Carry out every instruction of the Dockerfile in turn, and return the last stage."""
    stages: dict[str, Stage] = {}
    stage = Stage(folder)
    for word, rest in instructions((ROOT / "docker/Dockerfile").read_text(encoding="utf-8")):
        print(f"{word} {rest}", file=sys.stderr)
        if word == "FROM":
            name = rest.partition(" AS ")[2] or "last"
            stage = stages[name] = Stage(_fresh_root(folder / name))
        elif word == "WORKDIR":
            stage.folder = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "RUN":
            stage.run(rest)
        elif word == "COPY":
            _copy(stage, stages, rest)
        elif word == "ENV":
            for pair in shlex.split(rest):
                name, _, value = pair.partition("=")
                stage.env[name] = value.replace("$PATH", stage.environment()["PATH"])
        elif word == "USER":
            stage.user = rest
        elif word == "ENTRYPOINT":
            stage.entry = json.loads(rest)
        elif word == "CMD":
            stage.command = json.loads(rest)
        elif word not in ("VOLUME", "EXPOSE"):
            raise SystemExit(f"{word} of the Dockerfile is not known here.")
    return stage


def instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def _fresh_root(root: Path) -> Path:
    """Return an empty root in which the system is mounted read-only."""
    for name in ("etc", "dev", "proc", "tmp", "root", "home", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    shown = [Path("/") / name for name in SYSTEM] + [Path(sys.base_prefix)]
    if wheels := os.environ.get("PIP_FIND_LINKS", ""):
        shown.append(Path(wheels))
    for path in shown:
        if path.is_symlink():
            (root / path.name).symlink_to(path.readlink())
        elif path.is_dir() and not path.is_relative_to("/usr/bin"):
            _mount(path, root, "ro")
    for name in ETC:
        source, to = Path("/etc") / name, root / "etc" / name
        if source.is_dir():
            shutil.copytree(source, to, symlinks=False, ignore_dangling_symlinks=True)
        elif source.exists():
            shutil.copy(source, to)
    for name in ("dev", "proc"):
        _mount(Path("/") / name, root)
    return root


def _mount(path: Path, root: Path, *how: str) -> None:
    to = root / path.relative_to("/")
    to.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--rbind", str(path), str(to)], check=True)
    if how:
        options = ",".join(("remount", "bind", *how))
        subprocess.run(["mount", "-o", options, str(to)], check=True)


def _copy(stage: Stage, stages: dict[str, Stage], rest: str) -> None:
    *sources, to = rest.split()
    base = ROOT
    if sources[0].startswith("--from="):
        base = stages[sources.pop(0).removeprefix("--from=")].root
    target = stage.root / stage.folder.lstrip("/") / to
    target.parent.mkdir(parents=True, exist_ok=True)
    for source in sources:
        path = base / source.lstrip("/")
        if path.is_dir():
            caches = shutil.ignore_patterns("__pycache__")
            leave = None if base != ROOT else caches
            shutil.copytree(path, target, symlinks=True, dirs_exist_ok=True, ignore=leave)
        else:
            shutil.copy(path, target / path.name if to.endswith("/") else target)


def start_image(stage: Stage) -> dict[str, Any]:
    """Apply the migrations, start web, worker and scheduler as compose does, and return figures."""
    database = os.environ["DATABASE_URL"]
    where = Path(database.partition("@")[2].rpartition("/")[0].replace("%2F", "/"))
    _read_only(stage, where)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = stage.environment(
        DATABASE_URL=database, REDIS_URL=os.environ["REDIS_URL"], SECRET_KEY=SECRET,
        HEADROOM_WORKER_READY="/tmp/worker-ready", HEADROOM_WORKER_CONCURRENCY="1",
    )  # fmt: skip
    migrate = stage.words([*stage.entry, "python", "manage.py", "migrate", "--verbosity=0"])
    subprocess.run(migrate, env=environment, check=True, stdout=sys.stderr)
    web = [word.replace(":8000", f":{port}") for word in stage.command]
    commands = (web, ["python", "manage.py", "work"],
                ["celery", "--app=planner.config.celery", "beat"])  # fmt: skip
    began = time.monotonic()
    running = [
        subprocess.Popen(
            stage.words([*stage.entry, *words]), env=environment, stdout=sys.stderr, process_group=0
        )
        for words in commands
    ]
    try:
        address = f"http://127.0.0.1:{port}"
        web_s = _wait_until(lambda: _status(f"{address}/readyz") == 200, running, began)
        ready = stage.root / "tmp/worker-ready"
        worker_s = _wait_until(ready.exists, running, began)
        page = urllib.request.urlopen(f"{address}/login/", timeout=30).read().decode()
        style = re.search(r'href="(/static/[^"]+\.css)"', page)
        user = Path(f"/proc/{running[0].pid}").stat().st_uid
        return {
            "web_seconds": round(web_s, 1),
            "worker_seconds": round(worker_s, 1),
            "page": _status(f"{address}/login/"),
            "style": _status(f"{address}{style[1]}") if style else 0,
            "user": user,
        }
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _read_only(stage: Stage, shown: Path) -> None:
    """Mount the root read-only, with its own /tmp and /data, and with ``shown`` in it."""
    root, data = stage.root, stage.root.with_name("data")
    (root / shown.relative_to("/")).mkdir(parents=True, exist_ok=True)
    shutil.copytree(root / "data", data)
    user, group = map(int, stage._ids().split(":"))
    os.chown(data, user, group)
    for words in (
        ["--rbind", str(root), str(root)],
        ["-o", "remount,bind,ro", str(root)],
        ["--bind", str(data), str(root / "data")],
        ["-t", "tmpfs", "-o", "size=1g,mode=1777", "tmpfs", str(root / "tmp")],
    ):
        subprocess.run(["mount", *words], check=True)
    _mount(shown, root)


def _wait_until(done: Any, running: list[subprocess.Popen[bytes]], began: float) -> float:
    while not done():
        if any(process.poll() is not None for process in running):
            raise SystemExit("A process ended; its messages stand above.")
        if time.monotonic() - began > READY_S:
            raise SystemExit(f"It was not ready after {READY_S:.0f} s.")
        time.sleep(0.1)
    return time.monotonic() - began


def _status(address: str) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        return int(opener.open(address, timeout=30).status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0


def _megabytes(folder: Path) -> int:
    sizes = (path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    return round(sum(sizes) / 1e6)


if __name__ == "__main__":
    main()
