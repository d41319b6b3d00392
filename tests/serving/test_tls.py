"""TLS: a server that answers over HTTPS, silent handshakes, and files that are missing, foreign or encrypted."""

from __future__ import annotations

import dataclasses
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from certificates import write_certificate
from running import TIMEOUT, run_server

from bertworks.errors import InputError, SettingsError
from bertworks.serving import handshake
from bertworks.serving.tls import TlsFiles, create_tls_context, tls_files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return write_certificate(tmp_path_factory.mktemp("tls"))


def test_a_server_answers_over_https_and_closes_silent_handshakes(folders, files, one_thread, monkeypatch):
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.5)
    context = ssl.create_default_context(cafile=files.cert)
    with (
        run_server(f"bert={folders['sentences']}", tls=files) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT) as silent,
        httpx.Client(base_url=f"https://127.0.0.1:{server.port}", verify=context, timeout=TIMEOUT) as client,
    ):
        for _ in range(3):
            response = client.post("/v1/models/bert/embed", json={"inputs": ["a cat"]})
            assert len(response.json()["vectors"][0]) == 24
        assert client.post("/v1/models/bert/embed", content=b"{}", headers={"Connection": "close"}).status_code == 415
        with pytest.raises(httpx.TransportError):
            httpx.get(server.address + "/health", timeout=TIMEOUT)  # plain HTTP
        assert silent.recv(100) == b""
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT) as sock:
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with old.wrap_socket(sock) as tls_sock:
                assert tls_sock.version() == "TLSv1.2"


def test_the_context_refuses_versions_before_1_2(files):
    assert create_tls_context(files).minimum_version == ssl.TLSVersion.TLSv1_2


def test_both_options_are_needed():
    assert tls_files(None, None) is None
    with pytest.raises(SettingsError, match="--tls-cert needs --tls-key"):
        tls_files(Path("cert.pem"), None)
    with pytest.raises(SettingsError, match="--tls-key needs --tls-cert"):
        tls_files(None, Path("key.pem"))


@pytest.mark.parametrize("name", ["cert", "key"])
def test_a_missing_file_is_named(name, files, tmp_path):
    with pytest.raises(InputError, match=r"none\.pem cannot be read \(No such file or directory\)"):
        create_tls_context(dataclasses.replace(files, **{name: tmp_path / "none.pem"}))
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        create_tls_context(dataclasses.replace(files, **{name: tmp_path}))


def test_the_key_of_another_certificate_is_refused(files, tmp_path):
    with pytest.raises(InputError, match="does not belong to the certificate"):
        create_tls_context(TlsFiles(files.cert, write_certificate(tmp_path).key))


def test_an_encrypted_key_is_refused_without_asking_for_a_passphrase(tmp_path):
    with pytest.raises(InputError, match="is encrypted; write it without a passphrase"):
        create_tls_context(write_certificate(tmp_path, password=b"secret"))


def test_files_that_are_swapped_damaged_or_not_pem_are_refused(files, tmp_path):
    with pytest.raises(InputError, match="holds no PEM certificate"):
        create_tls_context(TlsFiles(files.key, files.cert))
    with pytest.raises(InputError, match="holds no PEM private key"):
        create_tls_context(TlsFiles(files.cert, files.cert))
    damaged = tmp_path / "damaged.pem"
    lines = files.key.read_text().splitlines()
    damaged.write_text("\n".join([lines[0], "A" * 64, lines[-1]]))
    with pytest.raises(InputError, match="is damaged"):
        create_tls_context(TlsFiles(files.cert, damaged))
