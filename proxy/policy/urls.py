"""What a backend's `url` may be."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

STANDINS: Final = ("sglang", "llamafactory")


def check_url(url: str) -> str:
    """Return the url.

    Raises: ValueError that says what is wrong without repeating the url, which may hold a secret.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError("not a url: its host or port can't be read") from error
    problem = _standin_problem(parts) if parts.scheme == "standin" else _http_problem(parts, port)
    if problem or re.search(r"[\s\x00-\x1f\x7f\\]", url):
        raise ValueError(problem or "not a url: spaces, backslashes and control characters have no place in it")
    return url


def _standin_problem(parts: SplitResult) -> str | None:
    if parts.netloc in STANDINS and not (parts.path.strip("/") or parts.query or parts.fragment):
        return None
    return f"expected one of {', '.join(f'standin://{name}' for name in STANDINS)}"


def _http_problem(parts: SplitResult, port: int | None) -> str | None:
    if parts.scheme not in ("http", "https"):
        return "expected http://host, https://host or standin://sglang (a url with its scheme)"
    if not parts.hostname:
        return "a url needs a host: http://host:port"
    if "@" in parts.netloc:
        return "a url can't hold a user or password: use api_key"
    if port == 0:
        return "a url's port is 1 to 65535"
    if parts.query or parts.fragment or parts.path.endswith(("?", "#")):
        return "a backend's url can't hold a query or fragment: requests bring their own"
    return None
