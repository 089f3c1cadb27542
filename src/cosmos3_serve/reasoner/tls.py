"""TLS between gateways and replicas: a key and a certificate that everybody makes from the cluster's secret.

The secret is made at each start, so the key is of that start, too, and lies on no disk but the engine's own folder. The
certificate is the same wherever it is made: Ed25519 signs without chance, and its dates are fixed. Whoever connects
trusts this certificate and no other, whatever the host is called; what it protects from the network is the secret, the
questions, their videos and the answers.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache

from cosmos3_serve.errors import StartRefused

NAME = "cosmos3-replica"
PURPOSE = b"cosmos3 replica tls key v1"


@dataclass(frozen=True, slots=True)
class Identity:
    """PEM texts."""

    certificate: str
    key: str = field(repr=False)


@lru_cache(maxsize=4)
def identity_of(secret: str) -> Identity:
    """
    Raises:
        StartRefused: code `tls_unavailable`: the package `cryptography` is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    except ImportError:
        raise StartRefused(
            "TLS between gateways and replicas needs the package `cryptography`",
            code="tls_unavailable",
            remedy="install it, or leave --replica-tls out",
        ) from None
    key = Ed25519PrivateKey.from_private_bytes(hmac.new(secret.encode(), PURPOSE, hashlib.sha256).digest())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2120, 1, 1, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Identity(made.public_bytes(Encoding.PEM).decode(), private.decode())


def pinned(secret: str) -> ssl.SSLContext:
    """For a client: trusts the certificate of this secret alone. Raises as `identity_of`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=identity_of(secret).certificate)
    return context
