"""What a URL may lead to, decided without a network."""

from ipaddress import ip_address

import pytest

from cosmos3_serve.errors import UsageError
from cosmos3_serve.media.refusal import Refused
from cosmos3_serve.reasoner.media.address import AllowList, Target, canonical_host, check_address, parse_target

NONE = AllowList()
PUBLIC = Target("https", "media.test", 443, "/", "media.test/", private=False)
LISTED = Target("https", "media.test", 443, "/", "media.test/", private=True)


def refusal(url: str, allow: AllowList = NONE, base: Target | None = None) -> Refused:
    with pytest.raises(Refused) as caught:
        parse_target(url, allow, base=base)
    return caught.value


@pytest.mark.parametrize(
    "url",
    [
        "http://media.test/a.mp4",
        "https://media.test:8443/a.mp4",
        "https://media.test:80/a.mp4",
        "https://user@media.test/a.mp4",
        "https://user:pass@media.test/",
        "https://media.test@10.0.0.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.1/",
        "https://127.1/",
        "https://0177.0.0.1/",
        "https://127.0.0.1.5/",
        "https://1.2.3.4.0x5/",
        "https:///a",
        "https://.test/",
        "https://a..b/",
        "https://[fe80::1%25eth0]/",
        "https://①②⑦.0.0.1/",
        "https://bücher.test/",
        "https://-a.test/",
        "ftp://media.test/a",
        "gopher://media.test/",
        "file:///etc/passwd",
    ],
)
def test_urls_that_are_refused_before_any_lookup(url: str) -> None:
    refused = refusal(url)
    assert refused.status == 400
    assert refused.code in ("media_url_refused", "media_url_invalid")
    assert refused.remedy


@pytest.mark.parametrize(
    "url", ["https://media.test/a b", "https://media.test\\@10.0.0.1/", "https://media.test/\n", "https://[::1", "https://h:99999/"]
)  # fmt: skip
def test_urls_that_cannot_be_read(url: str) -> None:
    assert refusal(url).code == "media_url_invalid"


def test_messages_show_host_and_path_and_never_the_query() -> None:
    target = parse_target("https://Media.TEST./clip é.mp4?X-Amz-Signature=secret#part".replace(" ", "%20"), NONE)
    assert target.shown == "media.test/clip%20%C3%A9.mp4"
    assert target.path == "/clip%20%C3%A9.mp4?X-Amz-Signature=secret"
    assert (target.host, target.port, target.authority) == ("media.test", 443, "media.test")
    assert "secret" not in refusal("http://media.test/a?key=secret").message


def test_an_allowed_host_opens_http_and_its_port_only() -> None:
    allow = AllowList.parse(["media.test:9000", "10.0.0.5", "[::1]:8000"])
    assert parse_target("http://media.test:9000/a", allow).private
    assert parse_target("http://MEDIA.test:9000/a", allow).authority == "media.test:9000"
    assert parse_target("http://10.0.0.5/a", allow).private
    assert parse_target("https://10.0.0.5/a", allow).private
    assert parse_target("http://[::1]:8000/a", allow).authority == "[::1]:8000"
    assert not parse_target("https://media.test/a", allow).private
    for url in (
        "http://media.test:9001/",
        "http://media.test/",
        "http://10.0.0.5:81/",
        "http://10.0.0.6/",
        "http://x.media.test:9000/",
    ):
        assert refusal(url, allow).code == "media_url_refused"
    assert "--media-allow media.test:9001" in refusal("http://media.test:9001/", allow).remedy


@pytest.mark.parametrize("entry", ["", "http://h", "h/path", "h:x", "u@h", "h:99999", "*.test", "10.0.0.0/8"])
def test_entries_that_are_no_host(entry: str) -> None:
    with pytest.raises(UsageError, match="media-allow"):
        AllowList.parse([entry])


def test_redirects_are_judged_like_urls() -> None:
    base = parse_target("https://media.test/dir/a.mp4", NONE)
    assert parse_target("b.mp4", NONE, base=base).url == "https://media.test/dir/b.mp4"
    assert parse_target("//other.test/b", NONE, base=base).host == "other.test"
    for location in ("http://media.test/", "//10.0.0.1:81/", "file:///etc/passwd", "https://u@media.test/"):
        assert refusal(location, NONE, base).code == "media_url_refused"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.255.254", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1",
        "198.18.0.1", "192.0.2.1", "::1", "fc00::1", "fd12:3456::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "64:ff9b::10.0.0.1", "2002:0a00:0001::", "2001:db8::1", "::127.0.0.1",
    ],
)  # fmt: skip
def test_private_addresses_need_an_entry(address: str) -> None:
    with pytest.raises(Refused) as caught:
        check_address(ip_address(address), PUBLIC)
    assert caught.value.code == "media_url_refused"
    assert "--media-allow" in caught.value.remedy
    assert address not in str(caught.value.as_dict()), "a client learns nothing of the network"
    check_address(ip_address(address), LISTED)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254", "169.254.1.1", "0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "240.0.0.1",
        "168.63.129.16", "100.100.100.200", "192.0.0.192", "::", "fe80::1", "ff02::1", "fd00:ec2::254", "fec0::1",
        "::ffff:169.254.169.254", "64:ff9b::169.254.169.254", "2002:a9fe:a9fe::", "4000::1",
    ],
)  # fmt: skip
def test_metadata_link_local_and_the_rest_stay_shut_even_with_an_entry(address: str) -> None:
    for target in (PUBLIC, LISTED):
        with pytest.raises(Refused):
            check_address(ip_address(address), target)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_pass(address: str) -> None:
    check_address(ip_address(address), PUBLIC)


def test_addresses_have_one_spelling() -> None:
    assert canonical_host("2001:DB8:0:0::1") == "2001:db8::1"
    assert canonical_host("Example.COM.") == "example.com"
    assert canonical_host("xn--bcher-kva.test") == "xn--bcher-kva.test"
