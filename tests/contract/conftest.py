"""The kinds of storage that a contract is held on: a folder, memory, S3 (moto's server), GCS and Azure (emulators).

S3 needs no network: the server is a thread of this process, started once. GCS and Azure run where the environment
names an emulator; docs/contributing/testing.md has the commands. Each test gets a root of its own.
"""

import logging
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

BUCKET = "contract"
AZURE = "AZURE_STORAGE_CONNECTION_STRING"
GCS = "STORAGE_EMULATOR_HOST"

KINDS = [
    "local",
    "memory",
    "s3",
    pytest.param("gcs", marks=pytest.mark.skipif(GCS not in os.environ, reason=f"no emulator: {GCS} is not set")),
    pytest.param("azure", marks=pytest.mark.skipif(AZURE not in os.environ, reason=f"no emulator: {AZURE} is not set")),
]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The endpoint of an S3 server on this machine, with one empty bucket."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug import serving

    backend = DomainDispatcherApplication(create_backend_app)
    one = threading.Lock()

    def in_turn(environ: Any, start_response: Any) -> Any:  # Any: WSGI
        # moto looks whether a key is there and puts it then, so that now and then two racers both win; S3 does not.
        with one:
            return backend(environ, start_response)

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line a request, shown with every failure
    server = serving.make_server("127.0.0.1", 0, in_turn, threaded=True)
    thread = threading.Thread(target=server.serve_forever, name="s3", daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    with pytest.MonkeyPatch.context() as patch:
        _point_at(endpoint, patch)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir(BUCKET)
    yield endpoint
    server.shutdown()
    thread.join()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root in a bucket that nothing else uses; the environment of this test leads there."""
    _point_at(s3_server, monkeypatch)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def _point_at(endpoint: str, patch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        patch.delenv(name, raising=False)
    patch.setenv("AWS_ENDPOINT_URL", endpoint)
    patch.setenv("AWS_ACCESS_KEY_ID", "test")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        patch.setenv(name, os.devnull)


@pytest.fixture(params=KINDS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that nobody has made yet, on each kind of storage."""
    if request.param == "local":
        return str(tmp_path / "store")
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}/store"
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/store"
    # gcsfs would ask the emulator for a kind of bucket that it does not know, once a call.
    request.getfixturevalue("monkeypatch").setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    protocol = {"gcs": "gs", "azure": "az"}[request.param]
    filesystem = fsspec.filesystem(protocol, skip_instance_cache=True)
    if not filesystem.exists(BUCKET):
        filesystem.mkdir(BUCKET)
    return f"{protocol}://{BUCKET}/{uuid.uuid4().hex}/store"
