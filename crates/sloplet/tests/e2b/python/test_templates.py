"""Templates: built step by step, named, tagged, used."""

import hashlib
import os
import time
import uuid

import httpx
import pytest
from e2b import AsyncTemplate, BuildException, Sandbox, Template, wait_for_timeout
from e2b.exceptions import SandboxException

import api


@pytest.fixture
def name():
    name = f"tpl-{uuid.uuid4().hex[:8]}"
    yield name
    api.call("DELETE", f"/templates/{name}")


def build(template, name, skip_cache=True, **options):
    logs = []
    say = lambda entry: logs.append(entry.message)
    info = Template.build(template, name, on_build_logs=say, skip_cache=skip_cache, **options)
    return info, logs


@pytest.fixture
def context(tmp_path):
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("a\n")
    (folder / "b c.txt").write_text("b\n")
    (folder / "sub" / "d.txt").write_text("d\n")
    (folder / "link").symlink_to("a.txt")
    (folder / "dangling").symlink_to("/does/not/exist")
    return tmp_path


def test_files_are_copied_as_a_dockerfile_would(name, context):
    template = (
        Template(file_context_path=str(context))
        .from_base_image()
        .copy("folder/*", "pattern")
        .copy("folder", "/opt/whole", user="root", mode=0o700)
        .copy("folder/a.txt", "renamed.txt")
        .copy("folder/a.txt", "into/")
        .copy("folder/link", "resolved", resolve_symlinks=True)
        .run_cmd("cat pattern/a.txt 'pattern/b c.txt' pattern/link renamed.txt into/a.txt && readlink pattern/dangling")
        .run_cmd("test ! -L resolved && cat resolved")
        .run_cmd("stat -c '%U %a' /opt/whole/sub/d.txt", user="root")
        .run_cmd("stat -c %U renamed.txt")
    )
    _, logs = build(template, name)
    said = [line for line in logs if line in {"a", "b", "/does/not/exist", "root 700", "user"}]
    assert said == ["a", "b", "a", "a", "a", "/does/not/exist", "a", "root 700", "user"]


def test_user_folder_and_variables_last_from_step_to_step_and_into_sandboxes(name):
    template = (
        Template()
        .from_base_image()
        .set_envs({"COLOUR": "blue", "BOTH": "dark $COLOUR"})
        .set_workdir("/srv/app")
        .run_cmd("echo 1:$(id -un):$PWD:$BOTH && touch mine")
        .set_user("root")
        .run_cmd("echo 2:$(id -un):$PWD")
        .run_cmd("echo 3:$(id -un)", user="user")
        .set_user("user")
    )
    _, logs = build(template, name, cpu_count=1, memory_mb=512)
    assert [line for line in logs if line[:2] in {"1:", "2:", "3:"}] == [
        "1:user:/srv/app:dark blue",
        "2:root:/srv/app",
        "3:user",
    ]
    sandbox = Sandbox.create(name, timeout=60)
    try:
        assert sandbox.commands.run("echo $BOTH", cwd="/srv/app").stdout == "dark blue\n"
        assert sandbox.files.exists("/srv/app/mine")
        info = sandbox.get_info()
        assert (info.cpu_count, info.memory_mb, info.name) == (1, 512, name)
    finally:
        sandbox.kill()


def test_what_is_to_be_started_runs_in_every_sandbox(name):
    start = "echo $$ > /tmp/started; exec python3 -m http.server 8000"
    ready = "python3 -c \"import urllib.request as u; u.urlopen('http://127.0.0.1:8000')\""
    build(Template().from_base_image().set_start_cmd(start, ready), name)
    sandbox = Sandbox.create(name, timeout=60)
    try:
        assert sandbox.commands.run(ready).exit_code == 0
    finally:
        sandbox.kill()


def test_a_template_builds_on_another(name):
    build(Template().from_base_image().set_workdir("/srv/app").set_envs({"A": "1"}).run_cmd("echo x > x"), name)
    second = f"{name}-second"
    _, logs = build(Template().from_template(name).run_cmd("echo got:$(cat x):$A:$PWD"), second)
    assert "got:x:1:/srv/app" in logs
    assert api.call("DELETE", f"/templates/{second}")[0] == 204


@pytest.mark.parametrize(
    "template, message, step",
    [
        (Template().from_base_image().run_cmd("echo one").run_cmd("echo why >&2; exit 7"), "exit status 7", "2"),
        (Template().from_base_image().run_cmd("id", user="nobody-like-it"), "invalid username: 'nobody-like-it'", "1"),
        (Template().from_base_image().set_user("nobody-like-it"), "invalid username: 'nobody-like-it'", "1"),
        (Template().from_base_image().set_user("root").set_workdir("/etc/passwd"), "/etc/passwd", "2"),
        (Template().from_template("nothing-like-it"), "was not found", "base"),
        (Template().from_base_image().set_start_cmd("exit 3", "false"), "exit status 3", "finalize"),
    ],
)
def test_a_failed_build_says_where_and_why(name, template, message, step):
    with pytest.raises(BuildException) as raised:
        build(template, name)
    assert message in str(raised.value)
    _, info = api.call("GET", f"/templates/{name}")
    path = f"/templates/{name}/builds/{info['builds'][0]['buildID']}/status"
    _, status = api.call("GET", path)
    assert (status["status"], status["reason"]["step"]) == ("error", step)
    # Nothing can be made from it.
    assert api.call("POST", "/v2/sandboxes", {"templateID": name})[0] in (404, 409)


def test_a_failed_command_tells_what_it_said(name):
    with pytest.raises(BuildException, match="the reason is this"):
        build(Template().from_base_image().run_cmd("echo the reason is this >&2; false"), name)


def test_long_logs_come_in_pieces_and_whole(name):
    _, logs = build(Template().from_base_image().run_cmd("seq -f line-%g 350"), name)
    assert [line for line in logs if line.startswith("line-")] == [f"line-{n}" for n in range(1, 351)]


def test_tags_mean_builds(name):
    first, _ = build(Template().from_base_image().run_cmd("echo 1 > /home/user/v"), f"{name}:v1")
    second, _ = build(Template().from_base_image().run_cmd("echo 2 > /home/user/v"), f"{name}:v2", tags=["new"])
    assert first.template_id == second.template_id and first.build_id != second.build_id
    assigned = Template.assign_tags(f"{name}:v1", ["stable"])
    assert (assigned.build_id, assigned.tags) == (first.build_id, ["stable"])
    tags = {tag.tag: tag.build_id for tag in Template.get_tags(name)}
    assert tags == {"v1": first.build_id, "stable": first.build_id, "v2": second.build_id, "new": second.build_id}

    def version(reference):
        sandbox = Sandbox.create(reference, timeout=60)
        try:
            return sandbox.files.read("/home/user/v").strip()
        finally:
            sandbox.kill()

    assert [version(f"{name}:{tag}") for tag in ["v1", "stable", "v2", "new"]] == ["1", "1", "2", "2"]
    Template.remove_tags(name, ["v1", "stable"])
    assert {tag.tag for tag in Template.get_tags(name)} == {"v2", "new"}
    assert api.call("POST", "/v2/sandboxes", {"templateID": f"{name}:v1"})[0] == 404
    for bad in [":x", f"{name}:", "a b"]:
        with pytest.raises(Exception):
            Template.assign_tags(f"{name}:v2", bad)


def test_templates_are_found_listed_shown_and_deleted(name):
    assert Template.exists("base") is True
    assert Template.exists(name) is False
    info, _ = build(Template().from_base_image(), name)
    assert Template.exists(name) is True
    for path in ["/templates", "/v2/templates"]:
        _, found = api.call("GET", path)
        one = next(one for one in found if one["templateID"] == info.template_id)
        assert one["names"] == [name] and one["buildStatus"] == "ready" and one["buildID"] == info.build_id
    assert api.call("PATCH", f"/v2/templates/{name}", {"public": True}) == (200, {"names": [name]})
    _, shown = api.call("GET", f"/templates/{info.template_id}")
    assert shown["public"] is True and [one["status"] for one in shown["builds"]] == ["ready"]
    assert api.call("DELETE", f"/templates/{name}")[0] == 204
    assert api.call("DELETE", f"/templates/{name}")[0] == 404
    assert Template.exists(name) is False
    assert api.call("POST", "/v2/sandboxes", {"templateID": info.template_id})[0] == 404


def test_a_build_in_the_background_can_be_watched_and_given_up(name):
    info = Template.build_in_background(Template().from_base_image().run_cmd("sleep 600"), name)
    assert Template.get_build_status(info).status.value == "building"
    # Its sandbox is nobody's business.
    assert all(one["templateID"] != info.template_id for one in api.call("GET", "/v2/sandboxes")[1])
    assert api.call("DELETE", f"/templates/{name}")[0] == 204
    assert api.call("GET", f"/templates/{name}/builds/{info.build_id}/status")[0] == 404


def test_uploads_are_for_those_who_have_the_address(name):
    _, made = api.call("POST", "/v3/templates", {"name": name})
    digest, other = uuid.uuid4().hex, uuid.uuid4().hex
    files = f"/templates/{made['templateID']}/files/{digest}"
    status, address = api.call("GET", files)
    assert status == 201 and address["present"] is False
    assert httpx.put(address["url"] + "0", content=b"x").status_code == 403
    assert httpx.put(address["url"].replace(digest, other), content=b"x").status_code == 403
    assert httpx.put(address["url"], content=b"x").status_code == 200
    assert api.call("GET", files)[1]["present"] is True
    assert api.call("GET", f"/templates/{made['templateID']}/files/..%2f..%2fetc")[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"fromImage": "base", "fromTemplate": "base"},
        {"fromImage": "base", "steps": [{"type": "EXPOSE", "args": ["80"]}]},
        {"fromImage": "base", "steps": [{"type": "RUN"}]},
        {"fromImage": "base", "steps": [{"type": "COPY", "args": ["a", "b"]}]},
        {"fromImage": "base", "steps": [{"type": "COPY", "args": ["a", "b"], "filesHash": "00" * 32}]},
        {"fromImage": "base", "steps": "x"},
    ],
)
def test_nonsense_is_refused_before_anything_is_built(name, body):
    _, made = api.call("POST", "/v3/templates", {"name": name})
    status, error = api.call("POST", f"/v2/templates/{made['templateID']}/builds/{made['buildID']}", body)
    assert status == 400 and error["code"] == 400 and error["message"]


@pytest.mark.parametrize("asked", [{}, {"name": "a b"}, {"name": "x", "tags": [":"]}, {"name": "x", "cpuCount": 0}])
def test_nonsense_is_no_template(asked):
    assert api.call("POST", "/v3/templates", asked)[0] == 400


def test_a_build_starts_once(name):
    _, made = api.call("POST", "/v3/templates", {"name": name})
    path = f"/v2/templates/{made['templateID']}/builds/{made['buildID']}"
    assert api.call("POST", path, {"fromImage": "base"})[0] == 202
    assert api.call("POST", path, {"fromImage": "base"})[0] == 400
    status = path.removeprefix("/v2") + "/status"
    while api.call("GET", status)[1]["status"] == "building":
        time.sleep(0.1)


@pytest.mark.asyncio
async def test_the_asynchronous_client_does_the_same(name, context):
    template = AsyncTemplate(file_context_path=str(context)).from_base_image().copy("folder", "x")
    template = template.set_start_cmd("echo hello", wait_for_timeout(1_000))
    info = await AsyncTemplate.build(template, name)
    assert await AsyncTemplate.exists(name)
    assert [tag.build_id for tag in await AsyncTemplate.get_tags(name)] == [info.build_id]


def test_a_large_upload_arrives_whole(name, tmp_path):
    content = os.urandom(32 << 20)
    (tmp_path / "large").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    template = Template(file_context_path=str(tmp_path)).from_base_image().copy("large", "large")
    _, logs = build(template.run_cmd("sha256sum large"), name)
    assert any(line.startswith(digest) for line in logs)


def test_steps_that_were_done_before_are_not_done_again(name, context):
    def template(last="echo last", first=f"date +%s%N > /home/user/when; : {name}"):
        return (
            Template(file_context_path=str(context))
            .from_base_image()
            .set_envs({"A": "1", "B": "$A-2"})
            .run_cmd(first)
            .set_workdir("/home/user/there")
            .copy("folder/a.txt", "a.txt")
            .set_user("root")
            .run_cmd(last)
        )

    def when(tag):
        sandbox = Sandbox.create(f"{name}:{tag}", timeout=60)
        try:
            look = 'cat ~user/when; echo "$B $(pwd) $(id -un)"; cat a.txt'
            first, *rest = sandbox.commands.run(look).stdout.splitlines()
            assert rest == ["1-2 /home/user/there root", "a"], rest
            return first
        finally:
            sandbox.kill()

    _, logs = build(template(), f"{name}:one", skip_cache=False)
    assert not any(line.startswith("CACHED") for line in logs), logs
    _, logs = build(template(), f"{name}:two", skip_cache=False)
    assert sum(line.startswith("CACHED") for line in logs) == 6, logs
    assert when("one") == when("two")
    # Only what comes after a change is done.
    _, logs = build(template(last="echo other"), f"{name}:three", skip_cache=False)
    assert sum(line.startswith("CACHED") for line in logs) == 4, logs
    assert "other" in logs and when("three") == when("one")
    (context / "folder" / "a.txt").write_text("a")
    _, logs = build(template(), f"{name}:four", skip_cache=False)
    assert sum(line.startswith("CACHED") for line in logs) == 2, logs
    _, logs = build(template(), f"{name}:five", skip_cache=True)
    assert not any(line.startswith("CACHED") for line in logs), logs
    assert when("five") != when("one")


def test_a_step_can_be_forced(name):
    first, forced = f"echo {name}", "echo forced"

    def template():
        return Template().from_base_image().run_cmd(first).skip_cache().run_cmd(forced).run_cmd("echo end")

    build(template(), f"{name}:one", skip_cache=False)
    _, logs = build(template(), f"{name}:two", skip_cache=False)
    assert [line for line in logs if line.startswith("CACHED")] == [f"CACHED [1/3] RUN {first}"], logs


def test_a_failed_step_is_done_again(name):
    for _ in range(2):
        with pytest.raises(BuildException, match="exit status 3"):
            build(Template().from_base_image().run_cmd(f"echo {name}").run_cmd("exit 3"), name, skip_cache=False)


def test_a_failed_template_is_not_found(name):
    with pytest.raises(BuildException):
        build(Template().from_base_image().run_cmd("exit 3"), name)
    with pytest.raises(SandboxException, match=f"404: .*{name}"):
        Sandbox.create(name)
    for path in ("/sandboxes", "/v2/sandboxes"):
        status, said = api.call("POST", path, {"templateID": name})
        assert (status, said["code"]) == (404, 404), said
    # It can be built again, and is found then.
    build(Template().from_base_image().run_cmd("true"), name)
    Sandbox.create(name, timeout=30).kill()


def test_tags_tell_what_they_were_given_to(name):
    first, _ = build(Template().from_base_image().run_cmd("echo 1"), f"{name}:v1", tags=["stable"])
    status, groups = api.call("GET", f"/templates/{first.template_id}/tags/groups?sort=name_asc&tagsLimit=1")
    assert status == 200 and [group["tag"] for group in groups["tags"]] == ["stable"]
    assert groups["tags"][0]["assignments"][0]["buildId"] == first.build_id and groups["nextCursor"]
    status, rest = api.call("GET", f"/templates/{first.template_id}/tags/groups?sort=name_asc&tagsCursor={groups['nextCursor']}")
    assert [group["tag"] for group in rest["tags"]] == ["v1"] and rest["nextCursor"] is None
    status, events = api.call("GET", f"/templates/{first.template_id}/tags/v1/assignments")
    assert status == 200 and uuid.UUID(events["data"][0]["assignmentId"]) and events["data"][0]["buildFinishedAt"]
    assert api.call("GET", f"/templates/{first.template_id}/tags/none/assignments")[0] == 404
    assert api.call("GET", f"/templates/{first.template_id}/tags/groups?sort=x")[0] == 400
