"""Saved sandboxes."""

import uuid

import pytest
from e2b import Sandbox


@pytest.fixture
def sandbox():
    sandbox = Sandbox.create(timeout=120)
    sandbox.files.write("/home/user/state", "saved")
    yield sandbox
    sandbox.kill()


def test_sandboxes_start_from_a_snapshot(sandbox):
    snapshot = sandbox.create_snapshot()
    sandbox.files.write("/home/user/state", "changed")
    new = [Sandbox.create(snapshot.snapshot_id, timeout=60) for _ in range(2)]
    try:
        new[0].files.write("/home/user/state", "mine")
        assert new[1].files.read("/home/user/state") == "saved"
        assert new[0].get_info().template_id == snapshot.snapshot_id
        assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
        # Those that started from it go on.
        assert new[1].commands.run("cat state").stdout == "saved"
    finally:
        for one in new:
            one.kill()
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False


def test_a_paused_sandbox_can_be_saved(sandbox):
    sandbox.pause()
    snapshot = sandbox.create_snapshot()
    new = Sandbox.create(snapshot.snapshot_id, timeout=60)
    try:
        assert new.files.read("/home/user/state") == "saved"
    finally:
        new.kill()
        Sandbox.delete_snapshot(snapshot.snapshot_id)


def test_a_name_means_the_last_snapshot_that_got_it(sandbox):
    name = f"snap-{uuid.uuid4().hex[:8]}"
    sandbox.create_snapshot(name=name)
    sandbox.files.write("/home/user/state", "later")
    snapshot = sandbox.create_snapshot(name=name)
    try:
        assert any(name in one for one in snapshot.names)
        for reference in [name, snapshot.names[0]]:
            new = Sandbox.create(reference, timeout=60)
            assert new.files.read("/home/user/state") == "later"
            new.kill()
        assert len(Sandbox.list_snapshots(name=name).next_items()) == 1
        assert Sandbox.list_snapshots(name=f"{name}-other").next_items() == []
    finally:
        Sandbox.delete_snapshot(snapshot.snapshot_id)


def test_listings_are_of_one_sandbox_and_in_pages(sandbox):
    made = [sandbox.create_snapshot().snapshot_id for _ in range(3)]
    paginator = Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id, limit=2)
    found = []
    while paginator.has_next:
        found.append([one.snapshot_id for one in paginator.next_items()])
    assert found == [made[:0:-1], made[:1]]
    for one in made:
        Sandbox.delete_snapshot(one)
