"""Addresses of databases, in the form that their own users write, and without secrets for display."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from congruence.errors import ParameterError

__all__ = ["Address", "hide_secrets", "refuse_secrets"]

#: Names of parameters of a URL or connection string whose values are never shown.
_SECRET = re.compile(r"pass(word|wd|phrase)?|pwd|secret|token|api[_-]?key|sslpassword|credential", re.IGNORECASE)

_HIDDEN = "***"


@dataclass(frozen=True)
class Address:
    """Address of a database, with its secrets kept separately.

    Attributes
    ----------
    text : str
        The address as given: a URL or a path. Never printed.
    shown : str
        The address for messages, journals and summaries, with the password and secret parameters replaced by ``***``.
    scheme : str
        Scheme of the URL in lower case; empty for a path.
    secrets : tuple of str
        Strings that :meth:`hide` removes from a text.
    """

    text: str = field(repr=False)
    shown: str
    scheme: str
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse a URL or path; any string is accepted."""
        match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
        if match is None:
            return cls(text, text, "")
        scheme = match[1].lower()
        try:
            parts = urlsplit(text)
            password, query = parts.password, parse_qsl(parts.query, keep_blank_values=True)
        except ValueError:  # e.g. an unclosed bracket: no part of the address is known to be safe to show
            credentials = re.match(r"[^:]*://[^:@/]*:(.*)@", text)
            return cls(text, f"{scheme}://{_HIDDEN}", scheme, (text, *([credentials[1]] if credentials else [])))
        secrets = [value for name, value in query if _SECRET.search(name) and value]
        netloc = parts.netloc
        if password is not None:
            user, _, host = netloc.rpartition("@")
            netloc = f"{user.partition(':')[0]}:{_HIDDEN}@{host}"
            secrets += [password, unquote(password), quote(unquote(password), safe="")]
        hidden = [(name, _HIDDEN if _SECRET.search(name) else value) for name, value in query]
        # Not with urlunsplit, which omits the slashes of an empty host.
        shown = f"{parts.scheme}://{netloc}{parts.path}{'?' if hidden else ''}{urlencode(hidden, safe='*/')}"
        return cls(text, shown, scheme, tuple(dict.fromkeys(filter(None, secrets))))

    def hide(self, text: str) -> str:
        """Replace the secrets in a text, such as a client's error message, by ``***``."""
        return hide_secrets(text.replace(self.text, self.shown), self.secrets)


def hide_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """Replace each secret in a text by ``***``, the longest first; secrets of one or two characters are kept, since they would match everywhere."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) > 2:
            text = text.replace(secret, _HIDDEN)
    return text


def refuse_secrets(address: Address, variable: str) -> None:
    """Raise ParameterError if an address contains a secret; the message names the environment variable that is read instead."""
    if address.secrets:
        raise ParameterError(
            f"Got {address.shown} with a secret in it; expected an address without one, since addresses end up in shell histories and logs. "
            f"Set the environment variable {variable} instead."
        )
