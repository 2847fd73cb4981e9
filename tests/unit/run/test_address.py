"""Addresses as people write them: what is taken, and what is said of the rest, before anything is asked."""

import pytest

from marin.base.errors import ConfigurationError
from marin.run.address import cluster_address, jobs_address


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("10.0.0.1:6379", "10.0.0.1:6379"),
        ("ray://head.lab:10001", "ray://head.lab:10001"),
        ("RAY://head:10001/", "ray://head:10001"),
        ("[::1]:6379", "[::1]:6379"),
        ("my_head-1:6379", "my_head-1:6379"),
        ("local", None),
        ("", None),
        (None, None),
    ],
)
def test_cluster_address_is_what_ray_reads(text, plain):
    assert cluster_address(text) == plain


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("http://10.0.0.1:8265", "http://10.0.0.1:8265"),
        ("HTTP://10.0.0.1:8265/", "http://10.0.0.1:8265"),
        ("https://ray.lab", "https://ray.lab"),
        ("http://[::1]:8265", "http://[::1]:8265"),
        ("https://lab/proxy/ray/", "https://lab/proxy/ray"),
    ],
)
def test_jobs_address_is_what_ray_reads(text, plain):
    assert jobs_address(text) == plain


@pytest.mark.parametrize(
    "text", ["h:99999", "h:0", "h:abc", "h:", ":6379", "ray://h", "h", "auto", "a b:1", "::1:6379"]
)
def test_cluster_address_that_is_none_is_refused(text):
    with pytest.raises(ConfigurationError, match="is no address") as refused:
        cluster_address(text)
    assert refused.value.where == text
    assert "HOST:6379" in refused.value.hint


@pytest.mark.parametrize("text", ["http://h:99999", "http://h:abc", "http://", "http:///x", "h:8265", "ftp://h:1", "h"])
def test_jobs_address_that_is_none_is_refused(text):
    with pytest.raises(ConfigurationError, match="is no address") as refused:
        jobs_address(text)
    assert "http://HOST:8265" in refused.value.hint


def test_address_of_the_other_verb_names_that_verb():
    with pytest.raises(ConfigurationError) as refused:
        cluster_address("HTTP://h:8265")
    assert "`marin submit --address http://h:8265`" in refused.value.hint
    with pytest.raises(ConfigurationError) as refused:
        jobs_address("Ray://h:10001")
    assert "`marin run --address ray://h:10001`" in refused.value.hint


@pytest.mark.parametrize("tail", ["/api", "/api/jobs/", "/#/jobs", "?x=1", "/api?x"])
def test_page_of_a_dashboard_is_no_address_and_the_hint_is_the_address(tail):
    with pytest.raises(ConfigurationError, match="page of a dashboard") as refused:
        jobs_address(f"http://h:8265{tail}")
    assert refused.value.hint == "give http://h:8265"


def test_cluster_address_with_a_path_is_refused():
    with pytest.raises(ConfigurationError, match="it has a path") as refused:
        cluster_address("ray://h:10001/x")
    assert refused.value.hint == "give ray://h:10001"


@pytest.mark.parametrize(
    "text", ["http://ada:s3cret@h:8265", "ray://s3cret@h:1", "s3cret@h:6379", "http://a:s3cret/x@h"]
)
@pytest.mark.parametrize("read", [cluster_address, jobs_address])
def test_password_is_refused_and_never_repeated(read, text):
    with pytest.raises(ConfigurationError, match="a user or a password") as refused:
        read(text)
    assert "s3cret" not in str(refused.value)
    assert "RAY_AUTH_TOKEN" in refused.value.hint
