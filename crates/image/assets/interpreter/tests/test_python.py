"""Python in a real kernel."""

from __future__ import annotations

import threading
import time
import unittest

from interpreter.tests.running import RunningServer, has, read_lines


class Python(RunningServer):
    """State, results, errors, interrupts and death."""

    def test_state_is_kept_and_executions_are_counted(self) -> None:
        context = self.call("POST", "/contexts", {})[1]["id"]
        self.text("x = 41", context_id=context)
        connection, response = self.begin("x + 1", context_id=context)
        lines = list(read_lines(response))
        connection.close()
        self.assertIn({"type": "number_of_executions", "execution_count": 2}, lines)
        self.assertEqual(next(line["text"] for line in lines if line["type"] == "result"), "42")

    def test_both_streams_are_told_apart(self) -> None:
        code = "import sys; print('out'); print('err', file=sys.stderr)"
        self.assertEqual((self.printed(code), self.printed(code, "stderr")), ("out\n", "err\n"))

    def test_output_arrives_while_code_runs(self) -> None:
        connection, response = self.begin("import time; print('early', flush=True); time.sleep(60)")
        for line in read_lines(response):
            if line["type"] == "stdout":
                break
        self.assertEqual(line["text"], "early\n")
        connection.close()
        response.close()

    def test_errors_have_a_traceback(self) -> None:
        error = self.error("def f():\n    return 1 / 0\nf()")
        self.assertEqual((error["name"], error["value"]), ("ZeroDivisionError", "division by zero"))
        self.assertIn("return", error["traceback"])
        self.assertEqual(self.error("print('")["name"], "SyntaxError")

    def test_rich_results(self) -> None:
        self.assertEqual(self.lines("{'a': [1, float('nan')]}")[0]["json"], {"a": [1, None]})
        code = "from IPython.display import display, HTML; display(HTML('<b>')); display({'text/latex': 'x', 'a/b': 1}, raw=True)"
        html, latex = self.lines(code)
        self.assertEqual((html["html"], html["is_main_result"]), ("<b>", False))
        self.assertEqual((latex["latex"], latex["extra"]), ("x", {"a/b": 1}))

    def test_variables_hold_for_one_execution(self) -> None:
        show = "import os; [os.environ.get(n) for n in ('GLOBAL', 'OWN')]"
        set_both = {"GLOBAL": "it's", "OWN": "own\n"}
        self.assertEqual(self.lines(show, env_vars=set_both)[0]["json"], ["it's", "own\n"])
        self.assertEqual(self.lines(show)[0]["json"], ["global", None])
        self.error("1/0", env_vars=set_both)
        self.error("(", env_vars=set_both)
        self.assertEqual(self.lines(show)[0]["json"], ["global", None])

    def test_who_leaves_interrupts(self) -> None:
        context = self.call("POST", "/contexts", {})[1]["id"]
        self.text("kept = 1", context_id=context)
        connection, response = self.begin("import time\nprint(1, flush=True)\ntime.sleep(600)", context_id=context)
        next(read_lines(response))
        response.close()
        connection.close()
        started = time.monotonic()
        self.assertEqual(self.text("kept", context_id=context), "1")
        self.assertLess(time.monotonic() - started, 60)

    def test_who_leaves_the_queue_interrupts_nobody(self) -> None:
        context = self.call("POST", "/contexts", {})[1]["id"]
        code = "import time\nprint(1, flush=True)\ntime.sleep(2); 'finished'"
        connection, response = self.begin(code, context_id=context)
        lines = read_lines(response)
        next(lines)
        waiting, never = self.begin("1/0", context_id=context)
        never.close()
        waiting.close()
        self.assertIn("finished", [line.get("text") for line in lines])
        connection.close()
        response.close()

    def test_a_dead_kernel_is_told_and_replaced(self) -> None:
        context = self.call("POST", "/contexts", {})[1]["id"]
        self.text("x = 1", context_id=context)
        error = self.error("print('last', flush=True); import os; os.kill(os.getpid(), 9)", context_id=context)
        self.assertEqual(error["name"], "KernelDied")
        self.assertIn("signal 9", error["value"])
        self.assertEqual(self.error("x", context_id=context)["name"], "NameError")

    def test_a_restart_ends_what_runs(self) -> None:
        context = self.call("POST", "/contexts", {})[1]["id"]
        connection, response = self.begin("x = 1\nprint(1, flush=True)\nwhile True: pass", context_id=context)
        lines = read_lines(response)
        next(lines)
        self.assertEqual(self.call("POST", f"/contexts/{context}/restart")[0], 204)
        self.assertIn("ContextRestarted", [line.get("name") for line in lines])
        connection.close()
        response.close()
        self.assertEqual(self.error("x", context_id=context)["name"], "NameError")

    def test_contexts_run_side_by_side_and_one_waits_for_itself(self) -> None:
        first, second = (self.call("POST", "/contexts", {})[1]["id"] for _ in range(2))
        path = f"{self.home.name}/gate"
        wait = f"import os, time\nwhile not os.path.exists({path!r}): time.sleep(0.01)\norder = 'waited'"
        thread = threading.Thread(target=self.lines, args=(wait,), kwargs={"context_id": first})
        thread.start()
        # Were the two not independent, nobody would ever open the gate.
        self.text(f"open({path!r}, 'w').close()", context_id=second)
        thread.join(60)
        self.assertFalse(thread.is_alive())
        self.assertEqual(self.text("order", context_id=first), "waited")

    @unittest.skipUnless(has("pandas"), "pandas is not installed")
    def test_data_frames(self) -> None:
        code = "import pandas as pd; pd.DataFrame({'a': [1, None], 't': pd.to_datetime(['2024-01-02', None])})"
        frame = self.lines(code)[0]
        self.assertEqual(frame["data"], {"a": [1.0, None], "t": ["2024-01-02T00:00:00", None]})
        self.assertIn("<table", frame["html"])

    @unittest.skipUnless(has("matplotlib"), "matplotlib is not installed")
    def test_a_plot_is_a_picture_and_its_numbers(self) -> None:
        code = "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='l'); plt.title('t'); plt.show()"
        plot = next(line for line in self.lines(code) if line["type"] == "result")
        self.assertTrue(plot["png"].startswith("iVBOR"))
        self.assertEqual((plot["chart"]["type"], plot["chart"]["title"]), ("line", "t"))
        self.assertEqual(plot["chart"]["elements"], [{"label": "l", "points": [[1.0, 3.0], [2.0, 4.0]]}])
