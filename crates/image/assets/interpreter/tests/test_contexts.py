"""Contexts and refusals, over HTTP."""

from __future__ import annotations

import os

from interpreter.tests.running import RunningServer


class Contexts(RunningServer):
    """Making, listing, restarting, removing; and what is refused."""

    def test_the_life_of_a_context(self) -> None:
        folder = os.path.join(self.home.name, "it's a folder")
        os.makedirs(folder, exist_ok=True)
        status, made = self.call("POST", "/contexts", {"language": "Python", "cwd": folder})
        self.assertEqual((status, made["language"], made["cwd"]), (200, "python", folder))
        self.assertEqual(self.call("GET", "/contexts")[1][-1], made)
        self.assertEqual(self.text("import os; os.getcwd()", context_id=made["id"]), folder)
        self.assertEqual(self.call("DELETE", f"/contexts/{made['id']}")[0], 204)
        self.assertNotIn(made, self.call("GET", "/contexts")[1])
        for method, path in (("DELETE", ""), ("POST", "/restart")):
            self.assertEqual(self.call(method, f"/contexts/{made['id']}{path}")[0], 404)
        self.assertEqual(self.call("POST", "/execute", {"code": "1", "context_id": made["id"]})[0], 404)

    def test_a_removed_default_comes_back_empty(self) -> None:
        self.text("x = 1")
        default = next(c for c in self.call("GET", "/contexts")[1] if c["language"] == "python")
        self.assertEqual(self.call("DELETE", f"/contexts/{default['id']}")[0], 204)
        self.assertEqual(self.error("x")["name"], "NameError")

    def test_bad_requests_are_refused_and_do_no_harm(self) -> None:
        refused = [
            ("POST", "/execute", b"{", 400),
            ("POST", "/execute", b"[]", 400),
            ("POST", "/execute", {}, 400),
            ("POST", "/execute", {"code": 1}, 400),
            ("POST", "/execute", {"code": "1", "language": "cobol\n"}, 400),
            ("POST", "/execute", {"code": "1", "language": 5}, 400),
            ("POST", "/execute", {"code": "1", "language": "python", "context_id": "x"}, 400),
            ("POST", "/execute", {"code": "1", "env_vars": {"A": 1}}, 400),
            ("POST", "/execute", {"code": "1", "env_vars": ["A"]}, 400),
            ("POST", "/execute", {"code": "1", "env_vars": {"A=B": "x"}}, 400),
            ("POST", "/execute", {"code": "1", "env_vars": {"A": "x\0"}}, 400),
            ("POST", "/contexts", {"language": "cobol"}, 400),
            ("POST", "/contexts", {"cwd": "/nowhere/at/all"}, 400),
            ("POST", "/contexts", {"cwd": "/\0"}, 400),
            ("GET", "/execute", None, 405),
            ("PUT", "/contexts", None, 405),
            ("GET", "/other", None, 404),
        ]
        before = self.call("GET", "/contexts")[1]
        for method, path, body, status in refused:
            answer = self.call(method, path, body)
            self.assertEqual(answer[0], status, (method, path, body, answer))
        self.assertIn("python, bash", self.call("POST", "/execute", {"code": "1", "language": "cobol"})[1])
        self.assertEqual(self.call("GET", "/contexts")[1], before)
        self.assertEqual(self.text("1 + 1"), "2")
