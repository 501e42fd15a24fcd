"""Bash and JavaScript in real kernels."""

from __future__ import annotations

import shutil
import unittest

from interpreter.tests.running import RunningServer, read_lines


class Bash(RunningServer):
    """One shell that lives on."""

    def test_state_streams_and_status(self) -> None:
        self.printed("x=5; cd /usr; f() { echo f$1; }; alias nothing=:", language="bash")
        self.assertEqual(self.printed("echo $x; pwd; f 1; echo 'ü'", language="bash"), "5\n/usr\nf1\nü\n")
        self.assertEqual(self.printed("echo out; echo err >&2", "stderr", language="bash"), "err\n")
        error = self.error("echo before; (exit 7)", language="bash")
        self.assertEqual((error["name"], error["value"]), ("ExitStatus", "7"))

    def test_what_is_no_code_is_an_error_and_no_end(self) -> None:
        context = self.call("POST", "/contexts", {"language": "bash"})[1]["id"]
        self.printed("kept=1", context_id=context)
        for code in ("echo 'unterminated", "if", ")", "cat <<EOF\nnever ended", "}"):
            self.lines(code, context_id=context)
            self.assertEqual(self.printed("echo $kept", context_id=context), "1\n", code)

    def test_code_cannot_read_what_is_meant_for_the_shell(self) -> None:
        self.assertEqual(self.printed("cat; read line; echo \"[$line]\"", language="bash"), "[]\n")

    def test_exit_ends_the_shell_and_a_new_one_comes(self) -> None:
        context = self.call("POST", "/contexts", {"language": "bash"})[1]["id"]
        self.printed("x=1", context_id=context)
        error = self.error("exit 3", context_id=context)
        self.assertEqual((error["name"], error["value"]), ("Exit", "3"))
        self.assertEqual(self.printed("echo [$x]", context_id=context), "[]\n")

    def test_variables_hold_for_one_execution(self) -> None:
        show = "echo \"$GLOBAL-$OWN\"; sh -c 'echo $OWN'"
        variables = {"GLOBAL": "it's", "OWN": "$x `y`", "not a name": "ignored"}
        self.assertEqual(self.printed(show, language="bash", env_vars=variables), "it's-$x `y`\n$x `y`\n")
        self.assertEqual(self.printed(show, language="bash"), "global-\n\n")

    def test_an_interrupt_ends_the_code_and_keeps_the_shell(self) -> None:
        for code in ("sleep 600", "while :; do :; done", "while :; do sleep 1; done; echo never"):
            context = self.call("POST", "/contexts", {"language": "bash"})[1]["id"]
            self.printed("kept=1", context_id=context)
            connection, response = self.begin(f"echo started; {code}", context_id=context)
            self.assertIn("started\n", (line.get("text") for line in read_lines(response)))
            response.close()
            connection.close()
            self.assertEqual(self.printed("echo $kept", context_id=context), "1\n", code)

    def test_what_runs_on_in_the_background_blocks_nothing(self) -> None:
        self.printed("yes & echo $!; background=$!", language="bash")
        self.assertIn("on\n", self.printed("kill $background; echo on", language="bash"))


@unittest.skipUnless(shutil.which("node"), "node is not installed")
class JavaScript(RunningServer):
    """One node that lives on."""

    def test_state_results_and_streams(self) -> None:
        self.text("const a = 1; let b = 2", language="js")
        self.assertEqual(self.text("a + b", language="javascript"), "3")
        self.assertEqual(self.printed("console.log('x')", language="js"), "x\n")
        self.assertEqual(self.lines("({ a: [1] })", language="js")[0]["json"], {"a": [1]})

    def test_await_and_imports(self) -> None:
        code = "import fs, { readFileSync as read } from 'fs'\nimport * as path from 'node:path'\nawait 1;\n"
        self.assertEqual(self.text(code + "[typeof fs.statSync, typeof read, path.sep].join()", language="js"), "function,function,/")
        self.assertEqual(self.text("typeof read", language="js"), "function")

    def test_errors(self) -> None:
        error = self.error("throw new TypeError('bad')", language="js")
        self.assertEqual((error["name"], error["value"]), ("TypeError", "bad"))
        self.assertIn("code.js", error["traceback"])
        self.assertEqual(self.error("let let", language="js")["name"], "SyntaxError")
        self.assertEqual(self.error("await Promise.reject(new RangeError('x'))", language="js")["name"], "RangeError")
        self.assertEqual(self.error("process.exit(4)", language="js")["value"], "4")

    def test_variables_hold_for_one_execution(self) -> None:
        show = "[process.env.GLOBAL, process.env.OWN].join()"
        self.assertEqual(self.text(show, language="js", env_vars={"GLOBAL": "x", "OWN": "y"}), "x,y")
        self.assertEqual(self.text(show, language="js"), "global,")

    def test_an_interrupt_ends_the_code_and_keeps_the_state(self) -> None:
        for code in ("while (true) {}", "await new Promise(() => setTimeout(() => {}, 1e9))"):
            context = self.call("POST", "/contexts", {"language": "js"})[1]["id"]
            self.text("globalThis.kept = 1", context_id=context)
            self.printed("process.stdout.write('')", context_id=context)
            connection, response = self.begin(f"require('fs').writeSync(1, 'started'); {code}", context_id=context)
            self.assertIn("started", (line.get("text") for line in read_lines(response)))
            response.close()
            connection.close()
            self.assertEqual(self.text("kept", context_id=context), "1", code)
