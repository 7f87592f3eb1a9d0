import functools
import ssl
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def clients_share_what_they_read() -> Iterator[None]:
    """Share certificates and schema among the Qdrant clients that these tests open."""
    from qdrant_client.embed import schema_parser

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        patch.setattr(schema_parser, "deepcopy", lambda schema: schema)
        yield
