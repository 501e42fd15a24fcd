"""The code interpreter with E2B's own Python package. E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL name the server."""

import asyncio

import pytest
from e2b_code_interpreter import AsyncSandbox, Sandbox


@pytest.fixture(scope="module")
def sandbox():
    made = Sandbox.create(timeout=600)
    yield made
    made.kill()


def test_state_is_kept_between_calls(sandbox):
    sandbox.run_code("x = 20")
    execution = sandbox.run_code("x += 1; x")
    assert execution.text == "21"
    assert execution.execution_count is not None


def test_output_is_streamed(sandbox):
    out, err = [], []
    execution = sandbox.run_code(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)",
        on_stdout=lambda message: out.append(message.line),
        on_stderr=lambda message: err.append(message.line),
    )
    assert "".join(out) == "out\n" and "".join(err) == "err\n"
    assert "".join(execution.logs.stdout) == "out\n"


def test_an_error_has_its_traceback(sandbox):
    error = sandbox.run_code("1 / 0").error
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    assert "ZeroDivisionError" in error.traceback and "line 1" in error.traceback


def test_a_figure_is_a_picture_and_a_chart(sandbox):
    execution = sandbox.run_code(
        "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [4, 5, 6], label='a')\nplt.title('t')\nplt.show()"
    )
    assert execution.error is None
    result = execution.results[0]
    assert result.png and result.chart.type == "line" and result.chart.title == "t"


def test_a_table_is_html(sandbox):
    result = sandbox.run_code("import pandas\npandas.DataFrame({'a': [1, 2]})").results[0]
    assert "<table" in result.html and result.is_main_result


def test_json_is_json(sandbox):
    result = sandbox.run_code("from IPython.display import JSON\nJSON({'a': [1]})").results[0]
    assert result.json == {"a": [1]}


def test_contexts_are_apart(sandbox):
    context = sandbox.create_code_context(cwd="/tmp", language="python")
    sandbox.run_code("y = 'in it'", context=context)
    assert sandbox.run_code("y", context=context).text == "in it"
    assert sandbox.run_code("y").error.name == "NameError"
    assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    sandbox.restart_code_context(context)
    assert sandbox.run_code("y", context=context).error.name == "NameError"
    sandbox.remove_code_context(context)
    assert context.id not in [one.id for one in sandbox.list_code_contexts()]


def test_bash_is_a_language(sandbox):
    execution = sandbox.run_code("z=1; echo bash $z", language="bash")
    assert "".join(execution.logs.stdout) == "bash 1\n"


def test_variables_of_one_execution(sandbox):
    execution = sandbox.run_code("import os; os.environ.get('ONCE')", envs={"ONCE": "yes"})
    assert execution.text == "yes"
    assert sandbox.run_code("import os; os.environ.get('ONCE')").text is None


def test_an_interrupt_leaves_the_kernel_usable():
    made = Sandbox.create(timeout=120)
    try:
        made.run_code("kept = 1")
        with pytest.raises(Exception):
            made.run_code("while True: pass", timeout=2)
        assert made.run_code("kept", timeout=30).text == "1"
    finally:
        made.kill()


def test_state_survives_a_pause():
    made = Sandbox.create(timeout=120)
    try:
        made.run_code("kept = 'alive'")
        made.pause()
        again = Sandbox.connect(made.sandbox_id)
        assert again.run_code("kept").text == "alive"
    finally:
        made.kill()


def test_the_asynchronous_kind():
    async def whole():
        made = await AsyncSandbox.create(timeout=120)
        try:
            execution = await made.run_code("print('hi'); 1 + 1")
            return execution.text, "".join(execution.logs.stdout)
        finally:
            await made.kill()

    assert asyncio.run(whole()) == ("2", "hi\n")
