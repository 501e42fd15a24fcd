"""Changes in folders, asked for and streamed."""

import asyncio
import time

import pytest
from e2b import FileNotFoundException, FilesystemEventType, InvalidArgumentException
from e2b.exceptions import SandboxException


def events_of(handle, enough, seconds=10):
    found, end = [], time.monotonic() + seconds
    while not enough(found):
        assert time.monotonic() < end, found
        found += [(event.type, event.name) for event in handle.get_new_events()]
    return found


CREATE, WRITE, REMOVE = FilesystemEventType.CREATE, FilesystemEventType.WRITE, FilesystemEventType.REMOVE
RENAME, CHMOD = FilesystemEventType.RENAME, FilesystemEventType.CHMOD


def test_every_kind_of_change(sandbox):
    sandbox.files.make_dir("kinds")
    handle = sandbox.files.watch_dir("kinds")
    sandbox.commands.run("cd kinds; touch a; echo x > a; chmod 600 a; mv a b; rm b; mkdir sub; touch sub/unseen")
    found = events_of(handle, lambda found: (CREATE, "sub") in found)
    for event in [(CREATE, "a"), (WRITE, "a"), (CHMOD, "a"), (RENAME, "a"), (CREATE, "b"), (REMOVE, "b")]:
        assert event in found
    assert "sub/unseen" not in [name for _, name in found]
    handle.stop()
    with pytest.raises(SandboxException):
        handle.get_new_events()


def test_an_upload_is_seen_at_once(sandbox):
    sandbox.files.make_dir("uploads")
    handle = sandbox.files.watch_dir("uploads", include_entry=True)
    for number in range(20):
        sandbox.files.write(f"uploads/{number}", "x")
        events = handle.get_new_events()
        assert [event.type for event in events] == [CREATE, CHMOD, WRITE], events
        assert {event.name for event in events} == {str(number)}
        assert events[-1].entry.path == f"/home/user/uploads/{number}" and events[-1].entry.size == 1
    assert handle.get_new_events() == []
    handle.stop()


def test_folders_below(sandbox):
    sandbox.files.make_dir("below/old")
    handle = sandbox.files.watch_dir("below", recursive=True)
    sandbox.files.write("below/old/f", "")
    sandbox.files.write("below/new/deep/f", "")
    events_of(handle, lambda found: {(CREATE, "old/f"), (CREATE, "new"), (CREATE, "new/deep/f")} <= set(found))
    handle.stop()


def test_what_cannot_be_watched(sandbox):
    sandbox.files.write("plain", "")
    with pytest.raises(FileNotFoundException):
        sandbox.files.watch_dir("nowhere")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.watch_dir("plain")


def test_watchers_are_bounded_and_private(own_sandbox, wire):
    handles = [own_sandbox.files.watch_dir("/home/user") for _ in range(64)]
    with pytest.raises(SandboxException):
        own_sandbox.files.watch_dir("/home/user")
    handles.pop().stop()
    handle = own_sandbox.files.watch_dir("/home/user")
    # Of another sandbox it is not known.
    answer = wire.call("filesystem.Filesystem/GetWatcherEvents", {"watcherId": handle._watcher_id})
    assert answer.error() == "not_found"


def test_more_changes_than_are_kept_are_told_as_lost(own_sandbox):
    own_sandbox.files.make_dir("flood")
    handle = own_sandbox.files.watch_dir("flood")
    own_sandbox.commands.run("cd flood; for i in $(seq 30000); do echo > some-rather-long-name-$((i % 7)); done", timeout=120)
    with pytest.raises(SandboxException) as lost:
        for _ in range(3):
            handle.get_new_events()
    assert "lost" in str(lost.value)
    assert own_sandbox.commands.run("echo fine").stdout == "fine\n"


def test_streamed(in_async):
    async def work(sandbox):
        await sandbox.files.make_dir("streamed")
        seen, enough, exits = [], asyncio.Event(), []

        def on_event(event):
            seen.append((event.type, event.name, event.entry))
            if event.name == "last" and event.type == WRITE:
                enough.set()

        handle = await sandbox.files.watch_dir("streamed", on_event, on_exit=exits.append, include_entry=True)
        await sandbox.files.write("streamed/first", "12345")
        await sandbox.files.write("streamed/last", "")
        await asyncio.wait_for(enough.wait(), 10)
        kinds = [(kind, name) for kind, name, _ in seen]
        assert kinds[0] == (CREATE, "first") and (WRITE, "first") in kinds
        assert any(entry and entry.size == 5 for _, name, entry in seen if name == "first")
        await handle.stop()
        with pytest.raises(FileNotFoundException):
            await sandbox.files.watch_dir("nowhere", on_event)

    in_async(work)
