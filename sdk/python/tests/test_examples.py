"""The examples: of the reference's README, of our own documents, of the examples folder. All run as they are written."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llm
import pytest
from sloplet import Client, Sandbox

HERE = Path(__file__).parent
ROOT = HERE.parent


def blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.M | re.S)


def run(code, folder, **more):
    folder.mkdir()
    (folder / "example.py").write_text(code)
    words = [sys.executable, "-W", "error::DeprecationWarning", "example.py"]
    outside = {**os.environ, "PYTHONUNBUFFERED": "1", **more}
    return subprocess.run(words, cwd=folder, env=outside, capture_output=True, text=True, timeout=120, check=False)


def all_of(codes, tmp_path, **more):
    """All at once: some wait for a network that is not there."""
    with ThreadPoolExecutor(8) as threads:
        jobs = [threads.submit(run, code, tmp_path / str(number), **more) for number, code in enumerate(codes)]
        done = [job.result() for job in jobs]
    for code, one in zip(codes, done, strict=True):
        assert one.returncode == 0, f"{code}\n{one.stdout}{one.stderr}"
    return [one.stdout for one in done]


@pytest.fixture
def clean(client: Client):
    before = {one.id for one in client.list_sandboxes()}
    yield
    for one in client.list_sandboxes():
        if one.id not in before:
            Sandbox(one, client).delete()


def test_the_reference_s_examples_run_as_written(own, tmp_path, clean):
    own.exec("echo '{}' >/app/config.json; echo A=1 >/app/.env; echo x >/app/debug.log; echo x >/var/log/app.log", user="root")
    project = tmp_path / "project"
    project.mkdir()
    (project / "file").touch()
    codes = blocks(HERE / "reference.md")
    assert len(codes) == 13
    changes = {
        "from do_app_sandbox": "from sloplet",
        "your-app-id": own.id,
        "ea1525eb-...": own.id,
        "/path/to/your/project": str(project),
        '"/tmp/app': f'"{tmp_path}/app',
    }
    for old, new in changes.items():
        codes = [code.replace(old, new) for code in codes]
    said = all_of(codes, tmp_path)
    assert "(file)" in said[3] and "Hello World" in said[4] and "Hello\n" in said[6] and "async!" in said[7]
    assert "Done with exit code: " in said[9] and "Access at: http" in said[9] and "Python 3" in said[12]
    assert own.exec("ls /home/sandbox/app/file").success


@pytest.mark.parametrize("page", ["README.md", "../../docs/python.md"])
def test_our_own_examples_run_as_written(page, tmp_path, clean):
    codes = blocks(ROOT / page)
    assert codes
    all_of(codes, tmp_path)


def test_agents_run_code_in_a_sandbox(tmp_path, client):
    server, url = llm.serve()
    before = {one.id for one in client.list_sandboxes()}
    outside = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-ant-x", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-x"}
    quiet = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false"}
    codes = [path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))]
    said = all_of(codes, tmp_path, **outside, **quiet)
    server.shutdown()
    assert [one.strip() for one in said] == ["the answer is 42"] * 3
    assert {one.id for one in client.list_sandboxes()} <= before, "their sandboxes are gone"
