"""Stand-ins for the LLM APIs: a model that asks for one piece of code to be run, and repeats what it printed."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CODE = json.dumps({"code": "print('the answer is', 6 * 7)"})


def messages(body):
    """Anthropic's."""
    last = body["messages"][-1]["content"]
    base = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    if isinstance(last, str):
        assert body["tools"][0]["name"] == "run_python"
        call = {"type": "tool_use", "id": "tu_1", "name": "run_python", "input": json.loads(CODE)}
        return {**base, "content": [call], "stop_reason": "tool_use"}
    return {**base, "content": [{"type": "text", "text": last[0]["content"]}], "stop_reason": "end_turn"}


def completions(body):
    """OpenAI's older one."""
    last = body["messages"][-1]
    base = {"id": "c_1", "object": "chat.completion", "created": 1, "model": body["model"], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
    if last["role"] != "tool":
        assert body["tools"][0]["function"]["name"] == "run_python"
        call = {"id": "call_1", "type": "function", "function": {"name": "run_python", "arguments": CODE}}
        message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    else:
        message, reason = {"role": "assistant", "content": last["content"]}, "stop"
    return {**base, "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}]}


def responses(body):
    """OpenAI's newer one."""
    items = body["input"] if isinstance(body["input"], list) else []
    outputs = [item["output"] for item in items if item.get("type") == "function_call_output"]
    if outputs:
        content = [{"type": "output_text", "text": outputs[-1], "annotations": []}]
        output = {"type": "message", "id": "m_1", "role": "assistant", "status": "completed", "content": content}
    else:
        assert body["tools"][0]["name"] == "run_python"
        output = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "run_python", "arguments": CODE, "status": "completed"}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": "r_1", "object": "response", "created_at": 1, "status": "completed", "model": body["model"], "output": [output],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage, "error": None, "incomplete_details": None,
        "instructions": None, "metadata": {}, "temperature": 1.0, "top_p": 1.0,
    }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        for path, reply in (("/messages", messages), ("/chat/completions", completions), ("/responses", responses)):
            if self.path.split("?")[0].endswith(path):
                text = json.dumps(reply(body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
                return
        self.send_error(404)

    def log_message(self, *_):
        pass


def serve():
    """One that listens; its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"
