import pytest
from s3_server import s3_server


@pytest.fixture
def bucket(monkeypatch):
    """An empty bucket of an object store, and what its clients ask the environment for."""
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with s3_server() as server:
        yield server
