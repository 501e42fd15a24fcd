"""The package itself: types, the two halves, what is shipped."""

import ast
import inspect
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import sloplet

ROOT = Path(__file__).parent.parent
PAIRS = ["Client", "FileSystem", "Process", "ProcessManager", "Sandbox", "ServiceClient", "Session", "SnapshotManager", "Terminal"]

#: Everything that the reference offers (docs of do-app-sandbox 0.2.3), as names here.
REFERENCE = {
    "Sandbox": "create get_from_id app_id component filesystem status mode state image exec exec_stream launch_process list_processes "
    "kill_process kill_all_processes get_url expose_port is_ready wait_ready delete get_status git_checkout create_snapshot restore_snapshot "
    "hibernate wake",
    "FileSystem": "read_file write_file append_file upload_file download_file list_dir mkdir rm exists is_file is_dir copy move chmod "
    "get_size upload_large download_large upload_folder download_folder has_spaces",
    "ProcessManager": "launch list get is_running kill kill_by_pattern kill_all_launched wait_for get_output "
    "list_processes get_process",
    "SnapshotManager": "create restore get list delete exists copy get_download_url create_snapshot restore_snapshot get_snapshot "
    "list_snapshots delete_snapshot snapshot_exists get_snapshot_download_url copy_snapshot",
    "ServiceClient": "health exec exec_stream exec_background list_processes get_process_logs stream_process_logs kill_process "
    "create_session get_session session_exec close_session",
    "SandboxManager": "start acquire release shutdown warm_up metrics acquire_with_snapshot wake_hibernated "
    "start_sync acquire_sync shutdown_sync acquire_with_snapshot_sync wake_hibernated_sync",
}


def members(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", REFERENCE)
def test_nothing_of_the_reference_is_missing(name):
    kind = getattr(sloplet, name)
    given = members(kind) | set(inspect.get_annotations(kind)) | instance_attributes(kind)
    assert set(REFERENCE[name].split()) <= given


#: What its methods take besides what is meant for its own console, and in which order.
ARGUMENTS = {
    ("Sandbox", "git_checkout"): "url path branch depth credentials",
    ("Sandbox", "create_snapshot"): "snapshot_id paths description tags timeout",
    ("Sandbox", "restore_snapshot"): "snapshot_id target_path timeout",
    ("Sandbox", "exec"): "command env cwd timeout",
    ("FileSystem", "copy"): "src dst recursive",
    ("FileSystem", "move"): "src dst",
    ("FileSystem", "upload_large"): "local_path remote_path progress_callback cleanup",
    ("SnapshotManager", "create_snapshot"): "sandbox snapshot_id paths exclude_patterns description tags timeout",
    ("SnapshotManager", "copy_snapshot"): "source_id target_id description tags",
    ("SandboxManager", "acquire_with_snapshot"): "image snapshot_id",
    ("SandboxManager", "shutdown"): "timeout wait_for_active",
    ("SandboxManager", "release"): "sandbox image",
}


@pytest.mark.parametrize("kind, method", ARGUMENTS)
def test_arguments_come_in_the_reference_s_order(kind, method):
    given = [name for name in inspect.signature(getattr(getattr(sloplet, kind), method)).parameters if name != "self"]
    wanted = ARGUMENTS[kind, method].split()
    assert given[: len(wanted)] == wanted


def test_errors_of_the_reference_can_be_caught():
    for name in "ConnectionError HibernationError ImageNotValidatedError ImageValidationError SandboxHibernatedError ServiceModeError " \
        "ServiceNotAvailableError SnapshotError SnapshotRestoreError SnapshotUploadError SpacesNotConfiguredError".split():
        assert issubclass(getattr(sloplet, name), sloplet.SandboxError), name


def instance_attributes(kind):
    tree = ast.parse(inspect.getsource(inspect.getmodule(kind)))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}


@pytest.mark.parametrize("name", PAIRS)
def test_both_halves_have_the_same_names_and_arguments(name):
    blocking, waiting = getattr(sloplet, name), getattr(sloplet, f"Async{name}")
    assert members(blocking) == members(waiting) - {"aclose"} | ({"close"} if hasattr(waiting, "aclose") else set())
    for member in members(blocking) & members(waiting):
        one, other = getattr(blocking, member), getattr(waiting, member)
        if inspect.isfunction(one):
            assert list(inspect.signature(one).parameters) == list(inspect.signature(other).parameters), member
            assert not inspect.iscoroutinefunction(one), member


def test_types_are_complete(type_check):
    said, _ = type_check.communicate(timeout=300)
    assert type_check.returncode == 0, said
    assert (Path(sloplet.__file__).parent / "py.typed").exists()


def test_the_binary_can_be_shipped(tmp_path):
    binary = tmp_path / "sloplet"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    source = tmp_path / "source"
    subprocess.run(["cp", "-r", str(ROOT), str(source)], check=True)
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    done = subprocess.run(words, cwd=source, env={**os.environ, "SLOPLET_BUNDLE": str(binary)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        assert {"sloplet/bin/sloplet", "sloplet/py.typed", "sloplet/_sync/sandbox.py"} <= set(names)
        assert files.getinfo("sloplet/bin/sloplet").external_attr >> 16 & 0o111


def test_times_and_sizes():
    from datetime import timedelta

    from sloplet._units import duration, machine, seconds, size

    assert [duration(value) for value in (1, 0.25, 90, 1.5, 100_000, timedelta(days=400), "5m")] == [
        "1s", "250ms", "90s", "1500ms", "1667m", "9600h", "5m",
    ]  # fmt: skip
    assert seconds("1h30m") == 5400 and seconds(2) == 2 and size(1 << 30) == "1GiB" and size(1) == "1KiB" and size("2GiB") == "2GiB"
    assert machine("apps-s-2vcpu-4gb") == {"cpus": 2.0, "memory": "4GiB"}
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError):
            duration(bad)
    with pytest.raises(ValueError):
        seconds("soon")
