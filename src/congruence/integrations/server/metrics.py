"""Metrics of the server, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from congruence._utils.optional import require

if TYPE_CHECKING:
    from congruence.integrations.server.batching import Batcher

__all__ = ["Metrics"]

#: Upper bounds of the histograms' buckets, in seconds and in texts.
SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Metrics of one server, in a registry of their own, so that two servers in one process stay separate.

    Attributes
    ----------
    content_type : str
        Content type of :meth:`page`.
    """

    def __init__(self) -> None:
        library = require("prometheus_client", extra="serve")
        self._library = library
        self._registry = library.CollectorRegistry()
        registry = {"registry": self._registry}
        self._requests = library.Counter("congruence_requests", "Requests answered.", ["path", "status"], **registry)
        self._seconds = library.Histogram(
            "congruence_request_seconds", "Seconds until a request was answered.", ["path"], buckets=SECONDS, **registry
        )
        self._active = library.Gauge(
            "congruence_active_requests", "Embedding requests being read, waiting or being encoded.", **registry
        )
        self._texts = library.Histogram(
            "congruence_batch_texts", "Texts per call of the encoder.", buckets=TEXTS, **registry
        )
        self._encoding = library.Histogram(
            "congruence_encode_seconds",
            "Seconds per call of the encoder and the bridge.",
            buckets=SECONDS,
            **registry,
        )
        self._waiting = library.Gauge("congruence_waiting_texts", "Texts waiting for the encoder.", **registry)
        self._tokens = library.Counter("congruence_tokens", "Tokens of all texts encoded for requests.", **registry)
        self.content_type: str = library.CONTENT_TYPE_LATEST

    def watch(self, batcher: Batcher) -> None:
        """Report the number of texts that wait in a batcher."""
        self._waiting.set_function(lambda: batcher.waiting)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request.

        ``path`` must be one of a fixed set, since each value gets a time series of its own.
        """
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def encoded(self, texts: int, seconds: float) -> None:
        """Record one call of the encoder: its number of texts and its duration."""
        self._texts.observe(texts)
        self._encoding.observe(seconds)

    def used(self, tokens: int) -> None:
        """Count the tokens of a request."""
        self._tokens.inc(tokens)

    def active(self, requests: int) -> None:
        """Report the number of embedding requests in progress."""
        self._active.set(requests)

    def page(self) -> bytes:
        """Return all metrics in the format that Prometheus reads."""
        page: bytes = self._library.generate_latest(self._registry)
        return page
