"""What the tools do, over standard input and output."""

import base64
import json
import os

import anyio
import pytest
from conftest import REVISIONS, awaited, does, fails, said, sloplet, stdio
from mcp import MCPError

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.mark.parametrize("mode", REVISIONS)
@awaited
async def test_all_tools_work(mode, tmp_path):
    (tmp_path / "in.txt").write_text("from the host")
    async with stdio("--share", str(tmp_path), "--name", f"all-{mode}", mode=mode) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert len(listed) == 19
        for tool in listed.values():
            assert tool.description and tool.annotations and tool.output_schema and "sandbox" in tool.input_schema["properties"]
        assert listed["read_file"].annotations.read_only_hint and not listed["exec"].annotations.read_only_hint
        assert listed["exec"].annotations.open_world_hint and listed["restore"].annotations.destructive_hint

        # Nothing is made before it is needed.
        assert (await does(client, "sandbox_info"))["state"] == "none yet"
        assert json.loads(sloplet("ls", "--json")) == []

        ran = await does(client, "exec", command="echo $A; cat; echo err >&2; exit 3", env={"A": "b"}, stdin="in\n", cwd="/tmp")
        assert (ran["exit_code"], ran["stdout"], ran["stderr"], ran["timed_out"]) == (3, "b\nin\n", "err\n", False)
        sandbox = ran["sandbox"]
        assert (await does(client, "sandbox_info"))["state"] == "running"

        for language, code in [("python", "print(6*7)"), ("bash", "echo $((6*7))"), ("javascript", "console.log(6*7)")]:
            assert (await does(client, "run_code", code=code, language=language))["stdout"] == "42\n", language
        assert not (await does(client, "run_code", code="1/0"))["ok"]

        await does(client, "write_file", path="/home/user/a/b.txt", content="one\ntwo\nthree\n")
        assert (await does(client, "read_file", path="a/b.txt"))["text"] == "one\ntwo\nthree\n"
        part = await does(client, "read_file", path="a/b.txt", start_line=2, lines=1)
        assert (part["text"], part["next_line"]) == ("two\n", 3)
        await does(client, "edit_file", path="a/b.txt", old_text="two", new_text="zwei")
        assert "not in the file" in await fails(client, "edit_file", path="a/b.txt", old_text="absent", new_text="")
        assert "4 times" in await fails(client, "edit_file", path="a/b.txt", old_text="e", new_text="")
        found = await does(client, "search_files", pattern="ZWEI", ignore_case=True, glob="*.txt", path="/home/user")
        assert [(one["path"], one["line"], one["text"]) for one in found["matches"]] == [("a/b.txt", 2, "zwei")]
        assert (await does(client, "search_files", glob="b.*", path="/home/user"))["matches"][0]["path"] == "a/b.txt"
        listing = await does(client, "list_files", path="/home/user", depth=2)
        assert "/home/user/a/b.txt" in [entry["path"] for entry in listing["entries"]]

        await does(client, "write_file", path="p.png", content=base64.b64encode(PIXEL).decode(), encoding="base64")
        picture = await client.call_tool("read_file", {"path": "p.png"})
        assert [base64.b64decode(block.data) for block in picture.content if block.type == "image"] == [PIXEL]

        await does(client, "upload", host_path="in.txt", path="/tmp/in.txt")
        await does(client, "download", path="/tmp/in.txt", host_path=str(tmp_path / "out.txt"))
        assert (tmp_path / "out.txt").read_text() == "from the host"
        assert "overwrite" in await fails(client, "download", path="/tmp/in.txt", host_path="out.txt")
        os.symlink("/etc", tmp_path / "etc")
        for outside in ["/etc/hostname", "../in.txt", "etc/hostname"]:
            await fails(client, "upload", host_path=outside, path="/tmp/x")

        await does(client, "write_file", path="/tmp/site/index.html", content="a page")
        server = await does(client, "start_process", command="exec python3 -u -m http.server 8000", cwd="/tmp/site")
        for _ in range(100):
            link = await does(client, "expose_port", port=8000)
            if link["listening"]:
                break
            await anyio.sleep(0.05)
        assert link["listening"] and link["url"].startswith("http")
        await does(client, "exec", command="python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:8000\")'")
        assert "GET / " in (await does(client, "process_output", pid=server["pid"]))["output"]
        assert server["pid"] in [one["pid"] for one in (await does(client, "list_processes"))["processes"] if one["managed"]]
        await does(client, "stop_process", pid=server["pid"], signal="SIGTERM")
        reader = await does(client, "start_process", command="read line; echo got $line", stdin=True)
        await does(client, "process_input", pid=reader["pid"], text="it\n")
        for _ in range(100):
            output = await does(client, "process_output", pid=reader["pid"])
            if not output["running"]:
                break
            await anyio.sleep(0.02)
        assert (output["output"], output["exit_code"]) == ("got it\n", 0)

        await does(client, "exec", command="python3 -c 'import socket; socket.create_connection((\"example.com\", 443))'")
        status = await does(client, "network_status")
        assert status["allow"] == [] and not status["internet"] and status["budget_usd"] == 1
        assert any("example.com" in one["to"] and not one["allowed"] and one["reason"] for one in status["tries"]), status

        saved = (await does(client, "snapshot"))["snapshot"]
        await does(client, "exec", command="rm -r /home/user/a")
        restored = await does(client, "restore", snapshot=saved)
        assert restored["sandbox"] != sandbox
        assert (await does(client, "read_file", path="a/b.txt", sandbox=sandbox))["text"] == "one\nzwei\nthree\n"
        assert "made no snapshot" in await fails(client, "restore", snapshot="other")

        uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
        assert {"sandbox://logs", "sandbox://ledger", "sandbox://files/home/user/p.png"} <= set(uris), uris
        assert (await client.read_resource("sandbox://files/home/user/a/b.txt")).contents[0].text == "one\nzwei\nthree\n"
        assert base64.b64decode((await client.read_resource("sandbox://files/home/user/p.png")).contents[0].blob) == PIXEL
        assert "exec_started" in (await client.read_resource("sandbox://ledger")).contents[0].text
        assert len((await client.list_resource_templates()).resource_templates) == 2
        for wrong in ["sandbox://files/absent", "sandbox://nothing", "file:///etc/passwd"]:
            with pytest.raises(MCPError):
                await client.read_resource(wrong)
    # The end of the conversation is the end of its sandboxes and snapshots.
    assert json.loads(sloplet("ls", "--all", "--json")) == []
    assert json.loads(sloplet("snapshot", "ls", "--json")) == []
    calls = [json.loads(line)["event"] for line in sloplet("audit", "--json", "--kind", "api_call").splitlines()]
    via = {call["via"].split("(")[0].strip() for call in calls if "via" in call}
    assert {"mcp exec", "mcp read_file", "mcp upload", "mcp restore", "mcp network_status"} <= via, via


@awaited
async def test_arguments_that_do_not_fit_are_told_to_the_model():
    async with stdio() as client:
        for tool, arguments, words in [
            ("exec", {}, "command"),
            ("exec", {"command": ""}, "command"),
            ("exec", {"command": 7}, "string"),
            ("exec", {"command": "true", "colour": "red"}, "colour"),
            ("exec", {"command": "true", "timeout_seconds": 0}, "timeout_seconds"),
            ("exec", {"command": "true", "cwd": "relative"}, "working directory"),
            ("exec", {"command": "true", "sandbox": "another"}, "no sandbox"),
            ("exec", {"command": "true", "sandbox": 7}, "sandbox"),
            ("run_code", {"code": "1", "language": "cobol"}, "cobol"),
            ("run_code", {"code": "1", "language": "typescript"}, "code-interpreter"),
            ("read_file", {"path": "/absent"}, "absent"),
            ("read_file", {"path": ""}, "path"),
            ("read_file", {"path": "/tmp"}, "/tmp"),
            ("write_file", {"path": "x", "content": "?", "encoding": "base64"}, "base64"),
            ("search_files", {"pattern": "(", "regex": True}, "pattern"),
            ("search_files", {}, "what to look for"),
            ("expose_port", {"port": 70000}, "65535"),
            ("stop_process", {"pid": 999999}, "999999"),
            ("snapshot", {"name": "a b"}, "name"),
        ]:
            text = await fails(client, tool, **arguments)
            assert words in text, (tool, arguments, text)
        with pytest.raises(MCPError, match="there is no tool 'upload'"):
            await client.call_tool("upload", {"host_path": "x", "path": "y"})


@awaited
async def test_output_is_bounded_and_text():
    async with stdio() as client:
        long = await client.call_tool("exec", {"command": "seq 1 200000; printf '\\377\\033[31mred'"})
        value = long.structured_content
        assert value["truncated"] and len(value["stdout"]) < 30_000 and value["stdout"].startswith("1\n2\n")
        assert value["stdout"].endswith("\ufffd\x1b[31mred") and "bytes left out" in value["stdout"]
        kept = said(long).split("is in ")[1].split(";")[0]
        rest = await does(client, "read_file", path=kept, start_line=100_000, lines=2)
        assert rest["text"] == "100000\n100001\n"
        late = await does(client, "exec", command="sleep 60", timeout_seconds=1)
        assert late["timed_out"] and late["exit_code"] != 0


async def commands(client):
    """What runs in the sandbox."""
    return [one["command"] for one in (await does(client, "list_processes"))["processes"] if one["running"]]


@awaited
async def test_progress_is_told_and_a_cancelled_call_is_killed():
    heard = []

    async def hear(progress, total, message):
        heard.append(message)

    async with stdio() as client:
        await client.call_tool("exec", {"command": "echo step one; sleep 1.5"}, progress_callback=hear)
        assert "step one" in heard, heard
        started = anyio.Event()

        async def sleep():
            await client.call_tool("exec", {"command": "echo begun; exec sleep 4321"}, progress_callback=begun)

        async def begun(progress, total, message):
            if message == "begun":
                started.set()

        async with anyio.create_task_group() as group:
            group.start_soon(sleep)
            await started.wait()
            assert any("sleep 4321" in command for command in await commands(client))
            group.cancel_scope.cancel()
        for _ in range(100):
            running = await commands(client)
            if not any("sleep 4321" in command for command in running):
                break
            await anyio.sleep(0.1)
        assert not any("sleep 4321" in command for command in running), running


@awaited
async def test_less_can_be_granted():
    async with stdio("--tools", "exec,files", "--read-only") as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["read_file", "list_files", "search_files"]
        for refused in ["exec", "write_file", "sandbox_info"]:
            with pytest.raises(MCPError, match="there is no tool"):
                await client.call_tool(refused, {"command": "true"})
        assert "usr" in said(await client.call_tool("list_files", {"path": "/"}))
        # A resource that tells what no granted tool tells is not there either.
        with pytest.raises(MCPError):
            await client.read_resource("sandbox://ledger")


@awaited
async def test_a_sandbox_that_is_there_is_used_and_left():
    name = sloplet("create", "--name", "mine").strip()
    async with stdio("--sandbox", name) as client:
        await does(client, "write_file", path="/tmp/x", content="kept")
        assert "not replaced" in await fails(client, "restore", snapshot="any")
    assert sloplet("cp", "mine:/tmp/x", "-") == "kept"
    sloplet("rm", "mine")


@awaited
async def test_calls_at_the_same_time_share_one_sandbox_which_can_be_kept():
    used = []

    async def use():
        used.append((await does(client, "exec", command="sleep 0.2"))["sandbox"])

    async with stdio("--keep", "--name", "kept") as client:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(use)
    assert len(used) == 5 and len(set(used)) == 1, used
    assert [one["id"] for one in json.loads(sloplet("ls", "--json"))] == used[:1]
    sloplet("rm", "kept")


@awaited
async def test_a_budget_that_is_used_up_is_told():
    async with stdio("--budget-execs", "2") as client:
        for _ in range(2):
            await does(client, "exec", command="true")
        assert "--budget" in await fails(client, "exec", command="true")


@awaited
async def test_a_sandbox_that_is_gone_is_told_once():
    async with stdio() as client:
        sandbox = (await does(client, "exec", command="touch /tmp/x"))["sandbox"]
        sloplet("rm", sandbox)
        assert "is gone" in await fails(client, "read_file", path="/tmp/x")
        assert (await does(client, "exec", command="ls /tmp"))["sandbox"] != sandbox


@pytest.mark.skipif("SLOPLET_INTERPRETER" not in os.environ, reason="needs an image that takes minutes to build")
@awaited
async def test_the_interpreter_remembers_and_draws():
    async with stdio("--image", "code-interpreter") as client:
        assert (await does(client, "run_code", code="x = 6 * 7"))["stateful"]
        assert (await does(client, "run_code", code="x"))["result"] == "42"
        drawn = await client.call_tool("run_code", {"code": "import matplotlib.pyplot as p\np.plot([1, 2])\np.show()"})
        pictures = [block for block in drawn.content if block.type == "image"]
        assert len(pictures) == 1 and base64.b64decode(pictures[0].data).startswith(b"\x89PNG")
        wrong = await does(client, "run_code", code="1/0")
        assert not wrong["ok"] and "ZeroDivisionError" in wrong["error"] and "\x1b" not in wrong["error"]
        assert not (await does(client, "run_code", code="while True: pass", timeout_seconds=1))["ok"]
        assert (await does(client, "run_code", code="console.log([1, 2].length)", language="javascript"))["stdout"] == "2\n"
