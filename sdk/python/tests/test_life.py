"""A sandbox's life, what it may, and what is written down about it."""

import json
import urllib.error
import urllib.request

import pytest
from sloplet import (
    AsyncSandbox,
    AuthenticationError,
    Budget,
    Client,
    CommandExecutionError,
    ConflictError,
    FileOperationError,
    FilePermissionError,
    HibernationError,
    InvalidRequestError,
    IsFolderError,
    NetworkRules,
    NoSuchFileError,
    NotFoundError,
    QuotaError,
    Sandbox,
    SandboxCreationError,
    SandboxError,
    SandboxHibernatedError,
    SandboxMode,
    SandboxNotFoundError,
    SandboxState,
    Secret,
    ServerStartError,
    ServiceConnectionError,
    SnapshotManager,
    SnapshotNotFoundError,
    SnapshotRestoreError,
    SpacesConfig,
)


def test_a_sandbox_is_what_was_asked_for_and_is_gone_afterwards():
    with Sandbox.create(
        image="python", name="sdk-one", memory="300MiB", cpus=0.5, pids=77, disk=200 << 20, env={"A": "1"}, hostname="box",
        metadata={"team": "sdk"}, ttl=300, idle_timeout="10m", on_timeout="pause", user="root", workdir="/tmp",
    ) as made:  # fmt: skip
        raw = made.info.raw
        assert (raw["memory"], raw["cpus"], raw["pids"], raw["disk"]) == ("300MiB", 0.5, 77, "200MiB")
        assert (raw["on_timeout"], raw["idle_timeout"], raw["hostname"]) == ("pause", "10m", "box")
        assert made.exec("echo $A; hostname; id -u; pwd").stdout == "1\nbox\n0\n/tmp\n"
        assert (made.id, made.name, made.state, made.status) == (made.app_id, "sdk-one", SandboxState.ACTIVE, "running")
        assert "sdk-one" in repr(made) and made.id in repr(made)
        found = Sandbox.get_from_id(app_id="sdk-one", component="web")
        assert found.id == made.id and found.component == "web"
        assert [one.id for one in Sandbox.list(metadata={"team": "sdk"})] == [made.id]
        with pytest.raises(ConflictError, match="sdk-one"):
            Sandbox.create(name="sdk-one")
        before = made.refresh().ends_at
        made.set_ttl("2h")
        assert made.info.ends_at > before + 3000
        made.set_ttl(None)
        assert made.info.ends_at is None
        assert made.usage().memory_limit_bytes == 300 << 20 and made.capabilities()["isolation"] == "container"
        assert isinstance(made.metrics(), list)
    assert made.state == SandboxState.DELETED and not made.is_ready()
    made.delete()  # need not be there
    with pytest.raises(SandboxNotFoundError, match="ttl="):
        made.exec("true")
    with pytest.raises(SandboxNotFoundError):
        Sandbox.get_from_id("sdk-one")


def test_the_reference_s_words_mean_something():
    with Sandbox.create(
        image="node", instance_size="apps-s-1vcpu-0.5gb", mode=SandboxMode.WORKER, region="nyc", registry="x", timeout=60,
        spaces_config={"bucket": "b", "region": "nyc3"}, wait_ready=False, ttl="5m",
    ) as made:  # fmt: skip
        made.wait_ready(timeout=60, poll_interval=0.1)
        assert (made.info.raw["cpus"], made.info.raw["memory"]) == (1.0, "512MiB")
        assert made.mode == SandboxMode.WORKER and made.get_url() is None
        assert made.exec("pwd -P").stdout == "/home/sandbox/app\n"
    with pytest.raises(ValueError, match="apps-s-1vcpu-1gb"):
        Sandbox.create(instance_size="huge")


def test_pause_stop_hibernate(own):
    own.filesystem.write_file("/app/kept", "yes")
    own.pause()
    assert own.state == SandboxState.PAUSED
    own.resume()
    assert own.exec("cat /app/kept").stdout == "yes"
    sleeping = own.hibernate()
    assert own.state == SandboxState.HIBERNATED and sleeping.sandbox_id == own.id and own.get_status() == "stopped"
    with pytest.raises(SandboxHibernatedError, match="wake"):
        own.exec("true")
    with pytest.raises(HibernationError):
        own.hibernate()
    woken = Sandbox.wake(sleeping)
    assert woken.id == own.id and woken.exec("cat /app/kept").stdout == "yes" and woken.info.ends_at


def test_snapshots_and_forks(own):
    own.filesystem.write_file("/app/x", "1")
    own.filesystem.write_file("/app/.env", "kept, too")
    own.filesystem.write_file("/tmp/y", "2")
    saved = own.create_snapshot("sdk-snap", paths=["/app"], description="why", tags={"k": "v"})
    try:
        assert (saved.snapshot_id, saved.description, saved.tags, saved.paths) == ("sdk-snap", "why", {"k": "v"}, ["/app"])
        manager = own.snapshots
        assert [one.id for one in manager.list("sdk-", tags={"k": "v"})] == [saved.id]
        assert manager.list("sdk-", tags={"k": "w"}) == [] and manager.get("sdk-snap") == saved
        own.filesystem.write_file("/app/x", "changed")
        own.filesystem.write_file("/tmp/y", "changed")
        own.restore_snapshot("sdk-snap")
        own.restore_snapshot("sdk-snap", "/tmp/elsewhere")
        assert own.exec("cat /app/x /tmp/y /tmp/elsewhere/x /tmp/elsewhere/.env").stdout == "1changed1kept, too"
        with Sandbox.create(image="sdk-snap") as other:
            assert other.exec("cat /app/x /tmp/y").stdout == "12"
        copied = manager.copy("sdk-snap", "sdk-copy")
        assert copied.tags == {"k": "v"} and manager.exists("sdk-copy")
        manager.delete("sdk-copy")
        by_reference(own, SnapshotManager(SpacesConfig("bucket", "nyc3"), "prefix/"))
        first, second = own.fork(2, name="sdk-fork", metadata={"f": "1"}, ttl="5m")
        assert first.name == "sdk-fork-1" and second.exec("cat /app/x").stdout == "1"
        first.delete()
        second.delete()
    finally:
        own.snapshots.delete("sdk-snap")
    assert not own.snapshots.exists("sdk-snap")
    with pytest.raises(SnapshotNotFoundError):
        own.restore_snapshot("sdk-snap")


def by_reference(sandbox, manager):
    """The same by the names that the reference has."""
    saved = manager.create_snapshot(sandbox, "sdk-ref", ["/app"], ["*.log"], "d", {"r": "1"}, 60)
    assert manager.snapshot_exists("sdk-ref") and manager.get_snapshot("sdk-ref").excluded == ["*.log"] == saved.excluded
    assert [one.snapshot_id for one in manager.list_snapshots("sdk-r", tags={"r": "1"})] == ["sdk-ref"]
    assert manager.copy_snapshot("sdk-ref", "sdk-ref-2", "e", {"s": "2"}).tags == {"s": "2"}
    assert manager.restore_snapshot(sandbox, "sdk-ref", "/tmp/again") is True
    assert sandbox.exec("cat /tmp/again/x").stdout == "1"
    with pytest.raises(SnapshotRestoreError, match="sdk-ref"):
        manager.restore_snapshot(sandbox, "sdk-ref", "/etc/passwd")
    assert [manager.delete_snapshot(name) for name in ("sdk-ref", "sdk-ref-2", "sdk-ref")] == [True, True, False]
    assert manager.get_snapshot("sdk-ref") is None


def test_a_wall_and_devices_can_be_named():
    with Sandbox.create(driver="namespaces", inodes=5000, ttl="5m") as made:
        assert made.capabilities()["isolation"] == "container" and made.exec("true").success
    with pytest.raises(InvalidRequestError, match="nowhere"):
        Sandbox.create(driver="nowhere")
    with pytest.raises(SandboxError, match="CDI"):
        Sandbox.create(gpu="none.example/gpu=0")


def test_masked_files_go_in(tmp_path):
    (tmp_path / "people.csv").write_text("name,town\nAda Lovelace,London\n")
    (tmp_path / "mask.toml").write_text('[table.people]\nname = "name"\ntown = "keep"\n')
    files = [{"from": str(tmp_path / "people.csv"), "to": "/data/people.csv", "mask": str(tmp_path / "mask.toml")}]
    with Sandbox.create(data=files, ttl="5m") as made:
        inside = made.exec("cat /data/people.csv", check=True).stdout
    assert "London" in inside and "Ada Lovelace" not in inside


def test_ports(sandbox):
    sandbox.launch_process("python3 -m http.server 3111", cwd="/app")
    sandbox.filesystem.write_file("/app/hello.txt", "from inside")
    exposed = sandbox.wait_for_port(3111)
    assert exposed.port == 3111 and exposed.protocol == "http" and 3111 in sandbox.ports()
    # A browser would follow the link, keep its cookie and go on.
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    assert b"hello.txt" in opener.open(exposed.url, timeout=30).read()
    address = exposed.url.split("?")[0]
    assert opener.open(address + "hello.txt", timeout=30).read() == b"from inside"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(address, timeout=30)
    assert sandbox.get_url().startswith("http")


def test_network_budget_cost(sandbox):
    assert sandbox.network().rules == NetworkRules(limits=sandbox.network().rules.limits)
    assert sandbox.allow("api.github.com", "*.example.com:443").rules.allow == ["api.github.com", "*.example.com:443"]
    rules = sandbox.deny("evil.example.com").rules
    assert rules.deny == ["evil.example.com"] and len(rules.allow) == 2
    sandbox.exec("python3 -c \"import socket; socket.create_connection(('203.0.113.9', 80), 3)\"")
    assert sandbox.network().denied >= 1
    sandbox.set_network(NetworkRules())
    assert sandbox.budget().budget == {"at_cap": "deny"}
    with Sandbox.create(budget_usd=1, ttl="5m") as rich:
        spent = rich.set_budget(Budget(usd=2.5, tokens=1000, exec_per_minute=6000))
        assert spent.budget["usd"] == "$2.50" and spent.usd == 0 and spent.budget["tokens"] == 1000
    assert sandbox.cost().running_seconds > 0
    with Sandbox.create(budget=Budget(exec_per_minute=1), ttl="5m") as poor:
        poor.exec("true")
        with pytest.raises((QuotaError, SandboxError), match="minute"):
            poor.exec("true")
    with pytest.raises(InvalidRequestError, match="not with both"):
        Sandbox.create(allow=["x"], network=NetworkRules())


def test_a_secret_stays_outside():
    secret = Secret("TOKEN", "hunter2", hosts=["api.example.com"], header="authorization")
    assert "hunter2" not in repr(secret)
    with Sandbox.create(secrets=[secret], allow=["api.example.com"], ttl="5m") as made:
        inside = made.exec("echo $TOKEN").stdout
        assert inside.strip() and "hunter2" not in inside and "hunter2" not in json.dumps(made.info.raw)


def test_what_happened_is_in_the_ledger(own, client):
    own.exec("echo noted")
    own.filesystem.write_file("/app/noted", "x")
    records = list(own.audit())
    assert records[0].kind == "sandbox_created" and {one.sandbox for one in records} == {own.id}
    assert any("echo noted" in json.dumps(one.event) for one in records)
    assert all(one.kind == "exec_started" for one in own.audit(kinds=["exec_started"]))
    head = client.ledger_head()
    report = client.verify_ledger(key=head["key"], head=head)
    assert report.sound and report.problems == []
    assert not client.verify_ledger(key="0" * 64).sound


def test_what_happens_can_be_followed(own, client):
    import threading

    later = threading.Timer(0.3, lambda: own.exec("echo followed"))
    later.start()
    record = next(iter(client.follow(sandbox=own.id, kinds=["exec_started"])))
    assert record.kind == "exec_started" and "echo followed" in json.dumps(record.event)
    later.join()


def test_containment_can_be_verified(client):
    (report,) = client.verify(probes=["masked-files"])
    assert report.passed and report.probes["masked-files"] == "contained" and report.driver == "namespaces"


def test_volumes_outlive_sandboxes(client):
    client.create_volume("sdk-vol")
    try:
        with Sandbox.create(volumes={"sdk-vol": "/data"}, ttl="5m") as made:
            made.exec("echo kept >/data/x", check=True)
        with Sandbox.create(volumes=[{"volume": "sdk-vol", "path": "/data", "read_only": True}], ttl="5m") as made:
            assert made.exec("cat /data/x").stdout == "kept\n"
        assert "sdk-vol" in [one.name for one in client.list_volumes()]
    finally:
        client.delete_volume("sdk-vol")


def test_errors_are_typed_and_say_what_to_do(sandbox, client, admin_key):
    with pytest.raises(SandboxCreationError, match="nope"):
        Sandbox.create(image="nope")
    with pytest.raises(InvalidRequestError, match="512MiB"):
        Sandbox.create(memory="much")
    assert sandbox.exec("mkdir -p below/it && cd below/it && pwd").stdout == sandbox.exec("pwd", cwd="below/it").stdout
    # As a shell tells it: nothing that a key could change.
    assert [sandbox.exec([name]).exit_code for name in ("nonsense", "/none", "/etc/passwd", "/tmp")] == [127, 127, 126, 126]
    with pytest.raises(NotFoundError, match="nonsense"):
        sandbox.start(["nonsense"])
    with pytest.raises(InvalidRequestError, match="/etc/passwd"):
        sandbox.start(["/etc/passwd"])
    files = sandbox.filesystem
    with pytest.raises(NoSuchFileError) as error:
        files.read_file("/none")
    assert error.value.status == 404 and isinstance(error.value, FileNotFoundError) and isinstance(error.value, FileOperationError)
    with pytest.raises(FilePermissionError, match="Permission denied") as error:
        files.write_file("/etc/passwd", "")
    assert isinstance(error.value, PermissionError)
    with pytest.raises(IsFolderError) as error:
        files.read_file("/tmp")
    assert isinstance(error.value, IsADirectoryError)
    with pytest.raises(SandboxNotFoundError):
        Sandbox(sandbox.info.__class__(**{**sandbox.info.__dict__, "id": "none"}), client).filesystem.read_file("/x")
    url = client.info()["url"]
    with pytest.raises(AuthenticationError, match="SLOPLET_API_KEY"):
        Client(url, "wrong").info()
    assert Client(url, admin_key).info()["scope"] == "admin"
    assert "wrong" not in repr(Client(url, "wrong"))
    with pytest.raises(ServiceConnectionError, match="no server answers"):
        Client("http://127.0.0.1:1").info()
    with pytest.raises(InvalidRequestError, match="http://127.0.0.1:7070"):
        Client("ftp://x")
    with pytest.raises(NotFoundError):
        sandbox.processes.attach(424242).info()
    assert issubclass(SandboxNotFoundError, SandboxError) and issubclass(ServerStartError, ServiceConnectionError)


async def test_many_at_once_with_await():
    import asyncio

    made = await asyncio.gather(*(AsyncSandbox.create(ttl="5m") for _ in range(5)))
    said = await asyncio.gather(*(one.exec(f"echo {n}") for n, one in enumerate(made)))
    assert [one.stdout for one in said] == [f"{n}\n" for n in range(5)]
    await asyncio.gather(*(one.delete() for one in made))
    async with await AsyncSandbox.create(image="python", ttl="5m") as one:
        saved = await one.create_snapshot("sdk-async")
        await one.snapshots.delete(saved.id)
        assert (await one.network()).denied == 0 and [record async for record in one.audit()]


def test_git_checkout(own):
    own.exec("git init -q -b main r && cd r && git config user.email a@b && git config user.name n && echo hi >f && git add f && git commit -qm m", cwd="/tmp", check=True)
    own.git_checkout("file:///tmp/r", "/app/clone", branch="main")
    assert own.filesystem.read_file("/app/clone/f") == "hi\n"
    from sloplet import GitCredentials

    # A token goes to the gateway, and nowhere inside; its host can be reached then, if it is there.
    with pytest.raises(CommandExecutionError, match="git.example.com"):
        own.git_checkout("https://git.example.com/x.git", "/app/y", credentials=GitCredentials(token="s3cret"))
    assert [one.partition("_TOKEN_")[0] for one in own.refresh().raw["secrets"]] == ["GIT"]
    assert "s3cret" not in repr(GitCredentials(token="s3cret")) + json.dumps(own.info.raw)
    for url, credentials in (("http://git.example.com/x", "s3cret"), ("https://x", GitCredentials(ssh_key="k")), ("https://a@x/", "t")):
        with pytest.raises(InvalidRequestError):
            own.git_checkout(url, "/app/y", credentials=credentials)
    assert own.exec("grep -rl s3cret /app /tmp /home 2>/dev/null").stdout == ""
    key = Secret.git("https://git.example.com:8443/team/x.git", "s3cret")
    assert key.to_json() == {"name": "GIT_TOKEN", "value": "s3cret", "hosts": ["git.example.com:8443"], "basic": "x-access-token"}
    with Sandbox.create(image="python", secrets=[key]) as made:
        with pytest.raises(SandboxError, match="git.example.com"):
            made.git_checkout("https://git.example.com:8443/x.git", "/app/y", credentials=GitCredentials(token="s3cret"))
        assert made.exec("env | grep -c s3cret").stdout == "0\n"


def test_what_changed_is_told_and_brought_out():
    with Sandbox.create(image="python") as made:
        made.exec("mkdir /tmp/w && cd /tmp/w && git init -q && echo a >f && git add f && git -c user.name=n -c user.email=a@b commit -qm m && echo b >>f && printf x >\"$(printf 'b\\377')\"", check=True)
        changes = {one.path_bytes: one for one in made.diff("/tmp/w")}
        assert changes[b"/tmp/w/f"].change == "added" and changes[b"/tmp/w/f"].size == 4
        assert changes[b"/tmp/w/b\xff"].kind == "file"
        patch = made.patch("/tmp/w")
        assert b"\n a\n+b\n" in patch and b'"b/b\\377"' in patch
        assert b"new file mode" in made.patch("/tmp/w/f", baseline="image")
        with pytest.raises(InvalidRequestError):
            made.diff("relative")
