"""Certificates as far as a server has to know its own: from when until when one is valid.

    PEM text ─► DER, one a certificate ─► Validity

Source: RFC 7468 §5 (PEM), RFC 5280 §4.1 (the fields and their order), §4.1.2.5 (times).
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import UTC, datetime

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----([\sA-Za-z0-9+/=]+)-----END CERTIFICATE-----")
_VERSION, _UTC_TIME = 0xA0, 0x17
_LONG = 0x80
# RFC 5280 §4.1.2.5.1: a year of two digits is of 1950 to 2049.
_PIVOT = 50


@dataclass(frozen=True, slots=True)
class Validity:
    """The time in which a certificate is valid."""

    since: datetime
    until: datetime


def certificates_in(pem: str) -> list[bytes]:
    """Return the certificates of a text, in DER. Raises: ValueError."""
    return [base64.b64decode("".join(block.split()), validate=True) for block in _PEM.findall(pem)]


def validity(der: bytes) -> Validity:
    """Return when a certificate is valid. Raises: ValueError."""
    try:
        at = _begin(der, _begin(der, 0))  # Certificate, TBSCertificate
        at = _end(der, at) if der[at] == _VERSION else at
        for _ in ("serialNumber", "signature", "issuer"):
            at = _end(der, at)
        since = _begin(der, at)
        return Validity(_time(der, since), _time(der, _end(der, since)))
    except IndexError as error:
        raise ValueError("the certificate is cut off") from error


def _extent(der: bytes, at: int) -> tuple[int, int]:
    """Return where the content of the element at `at` begins and ends. Source: X.690 §8.1.3."""
    length, begin = der[at + 1], at + 2
    if length & _LONG:
        digits = length ^ _LONG
        begin, length = begin + digits, int.from_bytes(der[begin : begin + digits])
    return begin, begin + length


def _begin(der: bytes, at: int) -> int:
    return _extent(der, at)[0]


def _end(der: bytes, at: int) -> int:
    return _extent(der, at)[1]


def _time(der: bytes, at: int) -> datetime:
    begin, end = _extent(der, at)
    text = der[begin:end].decode("ascii")
    if der[at] == _UTC_TIME:
        text = ("19" if int(text[:2]) >= _PIVOT else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
