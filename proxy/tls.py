"""TLS towards clients and backends: its files, made into contexts at start, and read again when they are renewed.

    Tls (what serve was told) ── Contexts ─┬─► served: what the data port shows, and whom it lets in
                                           └─► backend: whom we trust there, and what we show

A renewed certificate is tried on a context of its own first: one that fails would leave the context in use with half of
the old and half of the new.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from proxy.certificates import certificates_in, validity

_PRIVATE_KEY = "PRIVATE KEY-----"

log = structlog.get_logger("mendproxy")


class TlsFault(Exception):
    """A file of TLS can't be used; says which one, of which option, and why. Nothing of a key is in it."""


@dataclass(frozen=True, slots=True)
class Tls:
    """What `mendproxy serve` was told of TLS: the files' names."""

    cert: str | None = None
    key: str | None = None
    client_ca: str | None = None
    backend_ca: str | None = None
    backend_cert: str | None = None
    backend_key: str | None = None
    backend_insecure: bool = False

    @property
    def misuse(self) -> str | None:
        """What is wrong with how the options go together, in words."""
        if (self.cert is None) != (self.key is None):
            return "--tls-cert and --tls-key go together: one of them is missing"
        if self.client_ca is not None and self.cert is None:
            return "--tls-client-ca takes --tls-cert and --tls-key: clients show certificates by TLS only"
        if (self.backend_cert is None) != (self.backend_key is None):
            return "--backend-cert and --backend-key go together: one of them is missing"
        if self.backend_insecure and self.backend_ca is not None:
            return "--backend-ca says whom to trust, --backend-insecure to trust anybody: take one of them"
        return None

    @property
    def server_pair(self) -> Pair | None:
        """What the data port shows."""
        return None if self.cert is None or self.key is None else Pair("--tls", self.cert, self.key)

    @property
    def backend_pair(self) -> Pair | None:
        """What backends are shown."""
        has_none = self.backend_cert is None or self.backend_key is None
        return None if has_none else Pair("--backend", str(self.backend_cert), str(self.backend_key))


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key: the names of their files, and how their options begin."""

    option: str
    cert: str
    key: str

    def load(self, context: ssl.SSLContext) -> datetime:
        """Show this pair from now on; return until when it is valid. Raises: TlsFault, with the context as it was."""
        until = self._valid_until()
        if _PRIVATE_KEY not in _text(f"{self.option}-key", self.key):
            raise TlsFault(f"{self.option}-key {self.key}: holds no private key in PEM form")
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._load(context)
        return until

    def _valid_until(self) -> datetime:
        where = f"{self.option}-cert {self.cert}"
        try:
            # What follows the first one is the chain to its issuer, where one that nobody needs may be old.
            valid = validity(certificates_in(_text(f"{self.option}-cert", self.cert))[0])
        except (ValueError, IndexError):
            raise TlsFault(f"{where}: holds no certificate in PEM form") from None
        now = datetime.now(UTC)
        if now > valid.until:
            raise TlsFault(f"{where}: the certificate has expired ({valid.until:%Y-%m-%d %H:%M} UTC)")
        if now < valid.since:
            raise TlsFault(f"{where}: the certificate is not valid yet (from {valid.since:%Y-%m-%d %H:%M} UTC)")
        return valid.until

    def _load(self, context: ssl.SSLContext) -> None:
        where = f"{self.option}-key {self.key}"
        try:
            context.load_cert_chain(self.cert, self.key, password=_refuse)
        except _Encrypted:
            raise TlsFault(f"{where}: the key is encrypted; give one without a passphrase") from None
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise TlsFault(f"{where}: is not the key of the certificate in {self.cert}") from None
            # OpenSSL's name of what went wrong: a few fixed words.
            raise TlsFault(f"{where}: can't be used with {self.cert} ({error.reason})") from None
        except OSError as error:
            raise TlsFault(f"{where}: {error.strerror or 'can not be read'}") from None


class _Encrypted(Exception):
    """A key asks for a passphrase."""


def _refuse() -> str:
    """Ask nobody for a passphrase: OpenSSL would do so on the terminal."""
    raise _Encrypted


def _text(option: str, file: str) -> str:
    try:
        return Path(file).read_bytes().decode("latin-1")
    except OSError as error:
        raise TlsFault(f"{option} {file}: {error.strerror or 'can not be read'}") from None


class Contexts:
    """The TLS of a process; None where a side has none of its own."""

    def __init__(self, tls: Tls) -> None:
        """Read all files. Raises: TlsFault."""
        self._tls = tls
        self.served = None if tls.server_pair is None else _server_context(tls, tls.server_pair)
        has_own = tls.backend_insecure or tls.backend_ca is not None or tls.backend_pair is not None
        self.backend = backend_context(tls) if has_own else None

    def renew(self) -> None:
        """Show the certificates that the files hold now on new connections, or tell why not and keep the old ones."""
        for context, pair in ((self.served, self._tls.server_pair), (self.backend, self._tls.backend_pair)):
            if context is None or pair is None:
                continue
            try:
                until = pair.load(context)
            except TlsFault as fault:
                log.error("tls.kept", fault=str(fault))
            else:
                log.info("tls.renewed", file=pair.cert, until=until.isoformat())


def _server_context(tls: Tls, pair: Pair) -> ssl.SSLContext:
    context = _bounded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    pair.load(context)
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, "--tls-client-ca", tls.client_ca)
    return context


def backend_context(tls: Tls) -> ssl.SSLContext:
    """Return how backends are spoken to by TLS. Raises: TlsFault."""
    context = _bounded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    if tls.backend_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.backend_ca is None:
        context.load_default_certs()
    else:
        _trust(context, "--backend-ca", tls.backend_ca)
    if tls.backend_pair is not None:
        tls.backend_pair.load(context)
    return context


def _bounded(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return the context for what is spoken here: HTTP/1.1, by TLS that is not broken (RFC 8996)."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # An issuer that is named is trusted, also where it has one of its own.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _trust(context: ssl.SSLContext, option: str, file: str) -> None:
    where = f"{option} {file}"
    try:
        has_one = bool(certificates_in(_text(option, file)))
        if has_one:
            context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise TlsFault(f"{where}: can't be used ({error.reason})") from None
    except ValueError:
        has_one = False
    if not has_one:
        raise TlsFault(f"{where}: holds no certificate in PEM form")
