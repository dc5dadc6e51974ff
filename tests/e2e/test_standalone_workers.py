"""A worker may be spawned by the router, or started on its own behind a Unix socket or TCP with TLS: same tokens."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.load import Done, prompts, together
from support.server import Server, free_port, serving

JOBS: list[dict[str, object]] = [
    {"prompt": p, "max_tokens": 24, "temperature": 0.7, "seed": i} for i, p in enumerate(prompts(6, seed=21))
]
JOBS += [{**job, "structured_outputs": {"regex": "([a-z]{1,6} )+[0-9]"}} for job in JOBS[::2]]  # masks travel, too


@contextlib.contextmanager
def worker(*flags: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", "pelton.worker", *flags])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def answers(server: Server) -> list[list[int]]:
    return [done.tokens for done in together(server, JOBS)]


@pytest.fixture(scope="module")
def expected(checkpoints: Path) -> list[list[int]]:
    """What a spawned worker says."""
    with serving(checkpoints / "llama-gqa") as server:
        done: list[Done] = together(server, JOBS)
        return [d.tokens for d in done]


def test_behind_a_unix_socket(checkpoints: Path, tmp_path: Path, expected: list[list[int]]) -> None:
    socket = tmp_path / "worker.sock"
    with worker("--listen", f"unix://{socket}") as process:
        for _router in range(2):  # the worker outlives its first router
            with serving(checkpoints / "llama-gqa", "--worker", f"unix://{socket}") as server:
                assert answers(server) == expected
        assert process.poll() is None


def test_two_that_run_already_both_serve(checkpoints: Path, tmp_path: Path, expected: list[list[int]]) -> None:
    addresses = [f"unix://{tmp_path / name}.sock" for name in ("one", "two")]
    flags = [word for address in addresses for word in ("--worker", address)]
    with contextlib.ExitStack() as both:
        for address in addresses:
            both.enter_context(worker("--listen", address))
        with serving(checkpoints / "llama-gqa", *flags) as server:
            server.wait_until("both are ready", lambda: server.metric("pelton_workers_ready") == 2, 120)
            assert answers(server) == expected


@dataclass(frozen=True)
class Tls:
    """Files: an authority's certificate, and a certificate for 127.0.0.1 that it signed, with its key."""

    authority: Path
    certificate: Path
    key: Path


def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def certificate_of(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    """Valid for a day; an authority's if it signs itself."""
    now = datetime.datetime.now(datetime.UTC)
    localhost = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
        .add_extension(localhost, critical=False)
        .sign(signer, hashes.SHA256())
    )


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    folder = tmp_path_factory.mktemp("tls")
    files = Tls(folder / "authority.pem", folder / "worker.pem", folder / "worker.key")
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = certificate_of("authority", authority, "authority", authority)
    leaf = certificate_of("worker", key, "authority", authority)
    files.authority.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(pem(key))
    return files


def test_over_tcp_with_tls_and_token(checkpoints: Path, tmp_path: Path, tls: Tls, expected: list[list[int]]) -> None:
    token = tmp_path / "token"
    token.write_text("a secret of some length\n")
    token.chmod(0o600)
    address = f"tcp://127.0.0.1:{free_port()}"
    with worker(
        "--listen", address, "--token-file", str(token), "--tls-cert", str(tls.certificate), "--tls-key", str(tls.key)
    ):
        flags = ["--worker", address, "--worker-token-file", str(token), "--worker-ca", str(tls.authority)]
        with serving(checkpoints / "llama-gqa", *flags) as server:
            assert answers(server) == expected


def test_a_wrong_token_is_refused(checkpoints: Path, tmp_path: Path, tls: Tls) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for file, secret in ((right, "the right one"), (wrong, "the wrong one")):
        file.write_text(secret)
        file.chmod(0o600)
    address = f"tcp://127.0.0.1:{free_port()}"
    with worker(
        "--listen", address, "--token-file", str(right), "--tls-cert", str(tls.certificate), "--tls-key", str(tls.key)
    ):
        flags = ["--worker", address, "--worker-token-file", str(wrong), "--worker-ca", str(tls.authority)]
        server = Server(checkpoints / "llama-gqa", *flags)
        assert server.process.wait(timeout=60) == 1
        log = "\n".join(server.log)
        assert "token" in log
        assert "the right one" not in log
        assert "the wrong one" not in log
