"""Certificates: when one is valid is read as OpenSSL reads it."""

from datetime import UTC, datetime

import pytest
import trustme

from proxy.certificates import Validity, certificates_in, validity

TIMES = [
    pytest.param(datetime(2020, 1, 1, tzinfo=UTC), datetime(2030, 12, 31, 23, 59, 59, tzinfo=UTC), id="this century"),
    pytest.param(datetime(1950, 1, 1, tzinfo=UTC), datetime(1999, 12, 31, tzinfo=UTC), id="the last, in two digits"),
    pytest.param(datetime(2049, 12, 31, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC), id="where four digits begin"),
    pytest.param(datetime(2024, 2, 29, 12, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC), id="for ever"),
]


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.mark.parametrize(("since", "until"), TIMES)
def test_a_certificate_is_valid_from_and_until(authority, since, until):
    pem = authority.issue_cert("localhost", not_before=since, not_after=until).cert_chain_pems[0].bytes().decode()
    [der] = certificates_in(pem)
    assert validity(der) == Validity(since, until)


def test_all_certificates_of_a_chain_are_found_and_what_stands_between_them_is_not(authority):
    leaf = authority.create_child_ca().issue_cert("localhost")
    pems = [blob.bytes().decode() for blob in leaf.cert_chain_pems]
    assert len(pems) == 2
    text = "subject: a\n".join([*pems, leaf.private_key_pem.bytes().decode()])
    assert certificates_in(text) == [certificates_in(pem)[0] for pem in pems]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("no certificate", id="something else"),
        pytest.param("-----BEGIN CERTIFICATE-----\nMIIB", id="one that does not end"),
    ],
)
def test_a_text_without_a_certificate_has_none(text):
    assert certificates_in(text) == []


def test_a_text_that_is_no_base64_is_told():
    with pytest.raises(ValueError, match=r"base64|padding"):
        certificates_in("-----BEGIN CERTIFICATE-----\nMIIB=A\n-----END CERTIFICATE-----")


def test_a_certificate_that_is_cut_off_before_its_times_is_told_wherever_that_is(authority):
    [der] = certificates_in(authority.issue_cert("localhost").cert_chain_pems[0].bytes().decode())
    whole = validity(der)
    for size in range(len(der)):
        try:
            assert validity(der[:size]) == whole
        except ValueError:
            continue
    for size in range(40):
        with pytest.raises(ValueError, match=r"."):
            validity(der[:size])
