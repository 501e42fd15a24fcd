"""Lines for clients."""

from __future__ import annotations

import unittest

from interpreter import outputs


class Lines(unittest.TestCase):
    """What becomes of a kernel's messages."""

    def test_a_result_has_all_its_representations(self) -> None:
        bundle = {"text/plain": "'a'", "text/html": "<b>", "e2b/chart": {}, "image/png": "x", "application/x-own": 1}
        line = outputs.from_message("execute_result", {"data": bundle})
        expected = {"type": "result", "is_main_result": True, "text": "a", "html": "<b>", "png": "x"}
        self.assertEqual(line, expected | {"extra": {"application/x-own": 1}})

    def test_only_a_whole_string_loses_its_quotes(self) -> None:
        for text, shown in (("'", "'"), ("'a", "'a"), ("''", ""), ('"it\'s"', "it's"), ("1", "1")):
            self.assertEqual(outputs.result({"text/plain": text}, False)["text"], shown)

    def test_an_error_has_its_whole_traceback(self) -> None:
        content = {"ename": "E", "evalue": "v", "traceback": ["one", "two"]}
        expected = {"type": "error", "name": "E", "value": "v", "traceback": "one\ntwo"}
        self.assertEqual(outputs.from_message("error", content), expected)

    def test_what_clients_do_not_read_is_left_out(self) -> None:
        self.assertIsNone(outputs.from_message("comm_open", {}))
        self.assertIsNone(outputs.from_message("stream", {"name": "other", "text": "x"}))
        self.assertIsInstance(outputs.from_message("stream", {"name": "stdout", "text": "x"})["timestamp"], int)
