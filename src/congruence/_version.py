"""The version, read by the build and by every saved map."""

__version__ = "0.1.0"
