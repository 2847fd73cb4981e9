"""The kinds of storage that a contract is held on: a folder, memory, S3 (moto's server), GCS and Azure (emulators).

S3 needs no network: the server is a thread of this process, started once. GCS and Azure run where the environment
names an emulator; docs/contributing/testing.md has the commands. Each test gets a root of its own.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

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
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        _point_at(endpoint, patch)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir(BUCKET)
    yield endpoint
    server.stop()


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
    protocol = {"gcs": "gs", "azure": "az"}[request.param]
    filesystem = fsspec.filesystem(protocol, skip_instance_cache=True)
    if not filesystem.exists(BUCKET):
        filesystem.mkdir(BUCKET)
    return f"{protocol}://{BUCKET}/{uuid.uuid4().hex}/store"
