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


def changed(codes, changes):
    for old, new in changes.items():
        codes = [code.replace(old, new) for code in codes]
    return codes


@pytest.fixture(scope="module")
def ran(client: Client, tmp_path_factory):
    """What came of all examples. They run at once: some import much, and some wait for a network that is not there."""
    folder, before = tmp_path_factory.mktemp("examples"), {one.id for one in client.list_sandboxes()}
    existing = Sandbox.create(image="python", ttl="10m")
    existing.exec("echo '{}' >/app/config.json; echo A=1 >/app/.env; echo x >/app/debug.log; echo x >/var/log/app.log", user="root")
    (folder / "project").mkdir()
    (folder / "project" / "file").touch()
    account = {
        "from do_app_sandbox": "from sloplet",
        "your-app-id": existing.id,
        "ea1525eb-...": existing.id,
        "/path/to/your/project": str(folder / "project"),
        '"/tmp/app': f'"{folder}/app',
    }
    model, url = llm.serve()
    outside = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-ant-x", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-x"}
    outside |= {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false"}
    groups = {
        "agents": [path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))],
        "reference": changed(blocks(HERE / "reference.md"), account),
        "README": blocks(ROOT / "README.md"),
        "docs": blocks(ROOT / "../../docs/python.md"),
    }
    with ThreadPoolExecutor(6) as threads:
        jobs = {
            name: [(code, threads.submit(run, code, folder / f"{name}-{number}", **outside)) for number, code in enumerate(codes)]
            for name, codes in groups.items()
        }
    yield {name: [(code, job.result()) for code, job in group] for name, group in jobs.items()}, existing
    model.shutdown()
    for one in client.list_sandboxes():
        if one.id not in before:
            Sandbox(one, client).delete()


def said(done):
    for code, one in done:
        assert one.returncode == 0, f"{code}\n{one.stdout}{one.stderr}"
    return [one.stdout for _, one in done]


def test_the_reference_s_examples_run_as_written(ran):
    done, existing = ran
    told = said(done["reference"])
    assert len(told) == 13 and "(file)" in told[3] and "Hello World" in told[4] and "Hello\n" in told[6] and "async!" in told[7]
    assert "Done with exit code: " in told[9] and "Access at: http" in told[9] and "Python 3" in told[12]
    assert existing.exec("ls /home/sandbox/app/file").success


@pytest.mark.parametrize("page", ["README", "docs"])
def test_our_own_examples_run_as_written(page, ran):
    assert said(ran[0][page])


def test_agents_run_code_in_a_sandbox(ran):
    assert [one.strip() for one in said(ran[0]["agents"])] == ["the answer is 42"] * 3
