"""TLS: the files of a certificate and its key in, an SSL context out."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from bertworks.errors import InputError, SettingsError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a certificate (with its chain) and of its private key."""

    cert: Path
    key: Path


def tls_files(cert: Path | None, key: Path | None) -> TlsFiles | None:
    """Return the files of --tls-cert and --tls-key, which need each other; None without both."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        missing, given = ("--tls-cert", "--tls-key") if cert is None else ("--tls-key", "--tls-cert")
        raise SettingsError(f"{given} needs {missing} too: TLS takes a certificate and its private key")
    return TlsFiles(cert, key)


def create_tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context of a server; raise an InputError if a file cannot be used."""
    if "-----BEGIN CERTIFICATE-----" not in _read(files.cert, "certificate"):
        raise InputError(f"{files.cert} holds no PEM certificate; --tls-cert takes a file with BEGIN CERTIFICATE")
    if "PRIVATE KEY-----" not in _read(files.key, "private key"):
        raise InputError(f"{files.key} holds no PEM private key; --tls-key takes a file with BEGIN PRIVATE KEY")

    def refuse_encrypted_key() -> str:
        raise InputError(
            f"the private key in {files.key} is encrypted; write it without a passphrase, readable only by the server: "
            f"openssl pkey -in {files.key} -out decrypted.pem"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.cert, files.key, refuse_encrypted_key)
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            raise InputError(
                f"the private key in {files.key} does not belong to the certificate in {files.cert}; give the two "
                f"files of one certificate"
            ) from None
        raise InputError(
            f"the certificate in {files.cert} or the private key in {files.key} is damaged ({error.reason or error}); "
            f"export both as PEM again"
        ) from None
    return context


def _read(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="latin-1")
    except OSError as error:
        raise InputError(f"the {name} in {path} cannot be read ({error.strerror}); check the path") from None
