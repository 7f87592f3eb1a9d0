"""Conversion of the URLs that Arrow's file systems accept to the address and storage options that Lance accepts."""

from __future__ import annotations

import os
from urllib.parse import parse_qs, urlsplit, urlunsplit


def aws_endpoint() -> str | None:
    """Return the endpoint in AWS environment variables, which Arrow does not read; None if there is none."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def lance_location(uri: str) -> tuple[str, dict[str, str] | None]:
    """Return a URL's address without its query, and the storage options from the query and the environment."""
    parts = urlsplit(uri)
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    options: dict[str, str] = {}
    endpoint = query.get("endpoint_override") or aws_endpoint()
    if parts.scheme == "s3" and endpoint:
        use_http = query.get("scheme", "") == "http" or endpoint.startswith("http://")
        host = endpoint.split("://", 1)[-1]
        options["aws_endpoint"] = f"{'http' if use_http else 'https'}://{host}"
        options["allow_http"] = str(use_http).lower()
    if query.get("region"):
        options["aws_region"] = query["region"]
    return urlunsplit(parts._replace(query="")), options or None
