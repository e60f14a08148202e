"""A real S3-compatible server on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

LACKING = "no S3-compatible server here: pip install -r requirements-dev.txt -c constraints.txt"


@contextmanager
def s3_server(bucket: str) -> Iterator[tuple[str, Any]]:
    """Its address and a client of boto3, with an empty bucket; key ``key``, secret ``secret``."""
    boto3 = pytest.importorskip("boto3", reason=LACKING)
    loader = pytest.importorskip("botocore.loaders", reason=LACKING).JSONFileLoader
    pytest.importorskip("flask_cors", reason=LACKING)
    moto_server = pytest.importorskip("moto.server", reason=LACKING)
    server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    patch, parsed = pytest.MonkeyPatch(), cache(loader().load_file)
    # Else every client parses the descriptions of all services again.
    patch.setattr(loader, "load_file", lambda _, path: parsed(path))
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        client = boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="key",
            aws_secret_access_key="secret", config=boto3.session.Config(proxies={}),
        )  # fmt: skip
        client.create_bucket(Bucket=bucket)
        yield url, client
    finally:
        patch.undo()
        server.stop()
