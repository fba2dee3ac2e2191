"""Which ends of a program speak TLS, by its settings."""

from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from aerobee_service.tls.ends import ProgramTls, check_tls
from service.tls.certificates import Settings, write_pair


def test_each_end_is_there_when_it_is_asked_for(tmp_path: Path) -> None:
    certificate, key = write_pair(trustme.CA(), tmp_path, "localhost")
    pair = Settings(tls_server_mode="disabled", tls_server_cert_path=certificate, tls_server_key_path=key)
    cases = {
        (False, False, False): pair,
        (True, False, False): replace(pair, tls_server_mode="permissive"),
        (False, True, False): replace(pair, use_tls=True),
        (False, False, True): replace(pair, metrics_prom_exporter_tls=True),
    }
    for ends, settings in cases.items():
        tls = ProgramTls(settings)
        assert (tls.server is not None, tls.client is not None, tls.operators is not None) == ends
    assert [end for end, _ in ProgramTls(replace(pair, tls_server_mode="enforcing")).expiries()] == ["server"]


def test_tls_without_a_certificate_is_refused_before_the_start() -> None:
    check_tls(Settings(tls_server_mode="disabled"))
    check_tls(Settings(tls_config_path="/etc/rocketmq/tls.properties"))
    for settings, asks in (
        (Settings(), "tlsServerMode=enforcing"),
        (Settings(tls_server_cert_path="a"), "tlsServerMode=enforcing"),
        (Settings(tls_server_mode="disabled", metrics_prom_exporter_tls=True), "metricsPromExporterTls=true"),
    ):
        with pytest.raises(ValueError, match=f"{asks} needs tlsServerCertPath and tlsServerKeyPath"):
            check_tls(settings)
