"""A self-signed certificate, as a fresh Proxmox node has one that nobody's browser trusts."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
from pathlib import Path


def ensure(folder: Path, address: str) -> tuple[Path, str]:
    """The file with certificate and key, and the certificate's SHA-256 as PVE prints it. Made once a folder."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    path = folder / "pve-api.pem"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pve (lab stand-in)")])
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=3650))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(b"")
        path.chmod(0o600)
        path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    _, begin, rest = path.read_bytes().partition(b"-----BEGIN CERTIFICATE")
    certificate = x509.load_pem_x509_certificate(begin + rest)
    digest = hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest().upper()
    return path, ":".join(digest[at : at + 2] for at in range(0, 64, 2))
