"""Listings: filters, order, pages."""

import datetime
import uuid

import pytest
from e2b import AsyncSandbox, Sandbox, SandboxQuery, SandboxState


@pytest.fixture(scope="module")
def three():
    """Three sandboxes, oldest first; the second is paused."""
    mark = {"mark": uuid.uuid4().hex}
    made = [Sandbox.create(metadata={**mark, "number": str(number)}, timeout=300) for number in range(3)]
    made[1].pause()
    yield mark, [one.sandbox_id for one in made]
    for one in made:
        one.kill()


def ids(paginator):
    found = []
    while paginator.has_next:
        found += [one.sandbox_id for one in paginator.next_items()]
    return found


def test_newest_come_first_and_both_states_are_there(three):
    mark, made = three
    assert ids(Sandbox.list(query=SandboxQuery(metadata=mark))) == made[::-1]
    assert ids(Sandbox.list(query=SandboxQuery(metadata=mark), order="asc")) == made


def test_states_and_metadata_are_filters(three):
    mark, made = three
    listed = lambda **query: ids(Sandbox.list(query=SandboxQuery(**query)))
    assert listed(metadata=mark, state=[SandboxState.PAUSED]) == [made[1]]
    assert listed(metadata=mark, state=[SandboxState.RUNNING]) == [made[2], made[0]]
    assert listed(metadata={**mark, "number": "2"}) == [made[2]]
    assert listed(metadata={**mark, "number": "3"}) == []


def test_metadata_with_strange_characters_are_found():
    strange = {"a key/with=&%+": "a välue?%20" + uuid.uuid4().hex}
    sandbox = Sandbox.create(metadata=strange, timeout=60)
    try:
        assert ids(Sandbox.list(query=SandboxQuery(metadata=strange))) == [sandbox.sandbox_id]
    finally:
        sandbox.kill()


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_hold_each_sandbox_once(three, order):
    mark, made = three
    paginator = Sandbox.list(query=SandboxQuery(metadata=mark), limit=1, order=order)
    pages = []
    while paginator.has_next:
        page = paginator.next_items()
        assert len(page) == 1
        pages.append(page[0].sandbox_id)
    assert pages == (made if order == "asc" else made[::-1])


def test_those_that_started_later_can_be_asked_for(three):
    mark, made = three
    started = Sandbox.get_info(made[1]).started_at
    listed = lambda after: ids(Sandbox.list(query=SandboxQuery(metadata=mark, started_after=after)))
    assert listed(started) == [made[2], made[1]]
    assert listed(started + datetime.timedelta(hours=1)) == []


def test_those_of_a_template_can_be_asked_for(three):
    mark, made = three
    listed = lambda template: ids(Sandbox.list(query=SandboxQuery(metadata=mark, template=template)))
    assert listed("base") == made[::-1]
    assert listed("another") == []


@pytest.mark.asyncio
async def test_the_asynchronous_client_does_the_same(three):
    mark, made = three
    paginator = AsyncSandbox.list(query=SandboxQuery(metadata=mark), limit=2)
    assert [one.sandbox_id for one in await paginator.next_items()] == made[:0:-1]
    assert [one.sandbox_id for one in await paginator.next_items()] == made[:1]
    assert not paginator.has_next
