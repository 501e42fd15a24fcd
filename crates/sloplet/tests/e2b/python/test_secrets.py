"""Secrets: kept, never told again."""

import uuid

import pytest
from e2b import Secret
from e2b.exceptions import SecretNotFoundException

import api


@pytest.fixture
def name():
    name = f"key-{uuid.uuid4().hex[:8]}"
    yield name
    Secret.destroy(name)


def test_a_secret_has_versions_and_its_value_is_not_told(name):
    made = Secret.create(name.upper(), "first-value", metadata={"env": "test"})
    assert (made.name, made.version, made.metadata) == (name, 1, {"env": "test"})
    assert Secret.update(name, "second-value").version == 2
    assert Secret.get_info(made.secret_id).name == name
    for path in ["/secrets", f"/secrets/{name}"]:
        assert "-value" not in str(api.call("GET", path))
    assert api.call("POST", "/secrets", {"name": name, "value": "x"})[0] == 409
    assert Secret.destroy(made.secret_id) is True
    assert Secret.destroy(made.secret_id) is False
    assert Secret.exists(name) is False
    with pytest.raises(SecretNotFoundException):
        Secret.update(name, "x")


def test_listings_come_in_pages():
    made = [Secret.create(f"page-{uuid.uuid4().hex}", "x").secret_id for _ in range(3)]
    paginator = Secret.list(limit=2)
    found = []
    while paginator.has_next:
        found += [one.secret_id for one in paginator.next_items()]
    assert [one for one in found if one in made] == made[::-1]
    for one in made:
        Secret.destroy(one)


@pytest.mark.parametrize(
    "body",
    [
        {"name": "a"},
        {"name": "", "value": "x"},
        {"name": "sec_a", "value": "x"},
        {"name": "a b", "value": "x"},
        {"name": "a", "value": ""},
        {"name": "a", "value": "x" * 70_000},
        {"name": "a", "value": "x", "metadata": {str(n): "" for n in range(33)}},
    ],
)
def test_nonsense_is_refused(body):
    assert api.call("POST", "/secrets", body)[0] == 400
