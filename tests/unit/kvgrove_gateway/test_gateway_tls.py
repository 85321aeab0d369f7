"""HTTPS from files that are renewed while connections come in."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import pytest
from certificates import write_pair
from cryptography import x509

from kvgrove_gateway.settings import BadSettings, parse
from kvgrove_gateway.tls import ServerTls, TlsFiles, TlsUnusable


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    made = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    write_pair(made, 1)
    return made


async def serial_of(port: int) -> int:
    """The serial number of the certificate that a new connection is shown."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=anybody)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return int(x509.load_der_x509_certificate(shown).serial_number)


def test_new_connections_get_the_renewed_certificate_and_a_broken_renewal_changes_nothing(files: TlsFiles) -> None:
    failures: list[None] = []
    tls = ServerTls(files, on_failure=lambda: failures.append(None))

    async def run() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls.context)
        async with server:
            port = server.sockets[0].getsockname()[1]
            assert await serial_of(port) == 1
            assert not tls.refresh(), "nothing was renewed"
            write_pair(files, 2)
            assert tls.refresh()
            assert await serial_of(port) == 2
            other = TlsFiles(files.certificate.with_name("other.crt"), files.key.with_name("other.key"))
            write_pair(other, 3)
            os.replace(other.certificate, files.certificate)  # its key is still to come
            assert not tls.refresh()
            assert len(failures) == 1
            assert await serial_of(port) == 2
            os.replace(other.key, files.key)
            assert tls.refresh()
            assert await serial_of(port) == 3

    asyncio.run(run())


def test_files_that_are_no_pair_are_refused_at_the_start_by_name(files: TlsFiles) -> None:
    files.key.write_text("no key")
    with pytest.raises(TlsUnusable, match=r"--tls-cert .*tls\.crt, --tls-key .*tls\.key: ") as refused:
        ServerTls(files, on_failure=lambda: None)
    assert refused.value.field == "--tls-cert"
    files.key.unlink()
    with pytest.raises(TlsUnusable, match="No such file"):
        ServerTls(files, on_failure=lambda: None)


def test_old_protocols_are_not_spoken(files: TlsFiles) -> None:
    tls = ServerTls(files, on_failure=lambda: None)
    assert tls.context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_one_file_without_the_other_is_refused(tmp_path: Path) -> None:
    least = ["--member", "g", "--control", "tcp://127.0.0.1:9", "--plain-links", "--keys", str(tmp_path / "keys.yaml")]
    with pytest.raises(BadSettings, match="needs both"):
        parse([*least, "--tls-cert", str(tmp_path / "tls.crt")])
    settings = parse([*least, "--tls-cert", str(tmp_path / "c"), "--tls-key", str(tmp_path / "k")])
    assert settings.tls == TlsFiles(tmp_path / "c", tmp_path / "k")
