"""The product's settings, with everything it writes in a folder of this test process's own.

Subprocesses that a test starts inherit the environment set here, and so share that folder, the
queue in it and the name space in Redis with the test.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

if "HEADROOM_TEST_DIR" not in os.environ:
    os.environ["HEADROOM_TEST_DIR"] = tempfile.mkdtemp(prefix="headroom-test-")
    atexit.register(shutil.rmtree, os.environ["HEADROOM_TEST_DIR"], ignore_errors=True)
test_dir = Path(os.environ["HEADROOM_TEST_DIR"])
process = os.environ.get("PYTEST_XDIST_WORKER", "main")
os.environ["HEADROOM_DATA_DIR"] = str(test_dir / process)
os.environ["DJANGO_SETTINGS_MODULE"] = __name__  # for subprocesses too
# Compiling takes longer than most tests: one cache for all, kept from run to run.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / "var" / "numba"))

from planner.config.settings import *  # noqa: E402, F403 - the environment comes first
from planner.config.settings import CACHES, DATABASES, HEADROOM_DATA_DIR, STORAGES  # noqa: E402

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # fast
# A test that clears a cache in Redis would clear the queue and other tests' caches with it.
CACHES["default"] = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
STORAGES["staticfiles"] = {
    "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"  # no collectstatic needed
}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    # In memory, as Django would have it, a worker process could not see it.
    DATABASES["default"]["TEST"] = {"NAME": str(HEADROOM_DATA_DIR / "test.sqlite3")}
if os.environ.get("REDIS_URL"):
    CELERY_BROKER_TRANSPORT_OPTIONS = {"global_keyprefix": f"{test_dir.name}:{process}:"}
