"""A host that answers in the forms of Anthropic's and OpenAI's APIs, over TLS, and keeps what it was sent."""

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What every answer says it came to.
INPUT, OUTPUT = 100, 50


def message(model):
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": "Hello there"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": INPUT, "output_tokens": OUTPUT},
    }


def message_events(model):
    start = message(model) | {"content": [], "stop_reason": None, "usage": {"input_tokens": INPUT, "output_tokens": 1}}
    yield "message_start", {"message": start}
    yield "content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}
    for word in ("Hello", " there"):
        yield "content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": word}}
    yield "content_block_stop", {"index": 0}
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    yield "message_delta", {"delta": delta, "usage": {"output_tokens": OUTPUT}}
    yield "message_stop", {}


def chat(model):
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello there"}}
    usage = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": model, "choices": [choice], "usage": usage}


def chat_chunks(model, with_usage):
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": model}
    for word in ("Hello", " there"):
        yield base | {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}], "usage": None}
    yield base | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None}
    if with_usage:
        yield base | {"choices": [], "usage": chat(model)["usage"]}


def response(model, done=True):
    text = {"type": "output_text", "text": "Hello there", "annotations": []}
    item = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    usage = {
        "input_tokens": INPUT,
        "output_tokens": OUTPUT,
        "total_tokens": INPUT + OUTPUT,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": model,
        "status": "completed" if done else "in_progress",
        "output": [item] if done else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if done else None,
    }


def response_events(model):
    yield "response.created", {"sequence_number": 0, "response": response(model, done=False)}
    for number, word in enumerate(("Hello", " there"), 1):
        place = {"item_id": "m", "output_index": 0, "content_index": 0, "logprobs": []}
        yield "response.output_text.delta", {"sequence_number": number, "delta": word} | place
    yield "response.completed", {"sequence_number": 3, "response": response(model)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        asked = json.loads(body)
        self.server.kept.append((self.path, dict(self.headers), asked))
        model, stream = asked["model"], asked.get("stream")
        if asked.get("metadata") == {"user_id": "fails"}:
            error = {"type": "invalid_request_error", "message": "no such thing"}
            return self.send_json({"type": "error", "error": error}, 400)
        if self.path == "/v1/messages":
            if stream:
                return self.send_events({"type": name} | data for name, data in message_events(model))
            answer = message(model)
            # A careless host: it shows what it was sent.
            answer["content"][0]["text"] += " " + self.headers["authorization"].removeprefix("Bearer ")
            return self.send_json(answer)
        if self.path == "/v1/chat/completions":
            if stream:
                with_usage = (asked.get("stream_options") or {}).get("include_usage")
                return self.send_events(chat_chunks(model, with_usage), "[DONE]")
            return self.send_json(chat(model))
        if self.path == "/v1/responses":
            if stream:
                return self.send_events({"type": name} | data for name, data in response_events(model))
            return self.send_json(response(model))
        if self.path == "/v1/embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
            usage = {"prompt_tokens": INPUT, "total_tokens": INPUT}
            return self.send_json({"object": "list", "data": data, "model": model, "usage": usage})
        self.send_json({"error": {"message": "not found"}}, 404)

    def send_json(self, value, status=200):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def send_events(self, events, end=None):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        texts = [(f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}\n\n" for event in events]
        for text in texts + ([f"data: {end}\n\n"] if end else []):
            piece = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


class StandIn(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, certificate, key):
        super().__init__(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.kept = []
        threading.Thread(target=self.serve_forever, daemon=True).start()
