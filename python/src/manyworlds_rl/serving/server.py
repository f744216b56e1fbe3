"""HTTP in front of the generation loop: SGLang's `/generate`, whole or streamed, `/abort_request`, `/get_weight_version` and the list of models."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from ..types import Endpoint
from .batch import Ask, Generator, Piece
from .sampling import Sampling

MAX_BODY_BYTES = 64 * 1024 * 1024
DEFAULT_TOKENS = 4096


class ModelServer:
    """
    Serves `model` from a thread of this process, at `url`. Start and stop it with `with`, or by `close()`.

    `eos_ids` end an answer where a request names no ends of its own. `context_tokens` is what the gateway is told that fits; the model's own number where it is None.
    """

    def __init__(
        self,
        model: Any,
        *,
        model_name: str = "policy",
        eos_ids: Sequence[int] = (),
        version: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        context_tokens: int | None = None,
        max_batch: int = 64,
    ) -> None:
        self.model_name = model_name
        self.eos_ids = tuple(eos_ids)
        config = getattr(model, "config", None)
        self.context_tokens = context_tokens or getattr(config, "max_position_embeddings", None)
        self.generator = Generator(model, version=version, max_batch=max_batch)
        self._http = _Http((host, port), _Handler)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, name="manyworlds-model-server", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._http.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}"

    @property
    def endpoint(self) -> Endpoint:
        """For `run.set_policy(..., endpoints=[server.endpoint])`."""
        return {"url": self.url, "kind": "sglang"}

    @property
    def version(self) -> int:
        return self.generator.version

    @contextmanager
    def updating(self, version: int) -> Iterator[Any]:
        """As `Generator.updating`: the body changes the weights in place."""
        with self.generator.updating(version) as model:
            yield model

    def load(self, weights: Iterable[tuple[str, Any]], version: int) -> None:
        """Copies named tensors into the model, under a new version. Names that the model lacks are an error; those that are not given keep their values."""
        with self.generator.updating(version) as model, torch.no_grad():
            known = dict(model.named_parameters())
            known.update(model.named_buffers())
            for name, tensor in weights:
                known[name].copy_(tensor)

    def close(self) -> None:
        self._http.shutdown()
        self.generator.close()
        self._http.server_close()
        self._thread.join(timeout=5.0)

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    owner: ModelServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        owner = self.server.owner
        path = self.path.partition("?")[0].rstrip("/")
        if path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": owner.model_name, "object": "model", "owned_by": "manyworlds", "max_model_len": owner.context_tokens}]})
        elif path in ("/health", "/health_generate", ""):
            self._json(200, {"status": "ok"})
        elif path in ("/get_weight_version", "/get_model_info", "/server_info"):
            self._json(200, {"model_path": owner.model_name, "weight_version": str(owner.version)})
        else:
            self._json(404, {"error": {"message": f"there is no {path} here"}})

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        if length > MAX_BODY_BYTES:
            self.close_connection = True
            self._json(413, {"error": {"message": f"a body of more than {MAX_BODY_BYTES} bytes"}})
            return
        try:
            body = json.loads(self.rfile.read(length) or b"{}")
            if not isinstance(body, dict):
                raise TypeError("the body is no JSON object")
            if self.path == "/generate":
                self._generate(body)
            elif self.path == "/abort_request":
                rid = body.get("rid")
                self.server.owner.generator.abort(None if body.get("abort_all") else str(rid))
                self._json(200, {})
            else:
                self._json(404, {"error": {"message": f"there is no {self.path} here"}})
        except (ValueError, TypeError, KeyError) as error:
            self._json(400, {"error": {"message": f"{type(error).__name__}: {error}"}})

    def _generate(self, body: dict[str, Any]) -> None:
        owner = self.server.owner
        sampling = Sampling.of(body.get("sampling_params") or {}, DEFAULT_TOKENS)
        if not sampling.stop_token_ids:
            sampling = Sampling(**{**vars(sampling), "stop_token_ids": owner.eos_ids})
        prompt = body["input_ids"]
        vocabulary = owner.generator.model.get_input_embeddings().num_embeddings
        if not isinstance(prompt, list) or not prompt or not all(isinstance(token, int) and 0 <= token < vocabulary for token in prompt):
            raise ValueError(f"input_ids is one list of ids below {vocabulary}; this server takes no text")
        if owner.context_tokens is not None and len(prompt) >= owner.context_tokens:
            raise ValueError(f"The input ({len(prompt)} tokens) is longer than the model's context length ({owner.context_tokens} tokens).")
        pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        ask = Ask(str(body.get("rid") or ""), prompt, sampling, pieces.put)
        owner.generator.submit(ask)
        try:
            if body.get("stream"):
                self._stream(ask, pieces)
            else:
                self._whole(ask, pieces)
        except OSError:
            # Nobody reads: nothing more is to be generated.
            ask.cancelled = True
            self.close_connection = True

    def _whole(self, ask: Ask, pieces: queue.SimpleQueue[Piece]) -> None:
        answer = _Answer(ask)
        while answer.finish is None:
            answer.add(pieces.get())
        if answer.finish.startswith("error"):
            self._json(500, {"error": {"message": answer.finish}})
        else:
            self._json(200, answer.document(answer.ids, answer.logprobs))

    def _stream(self, ask: Ask, pieces: queue.SimpleQueue[Piece]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        answer = _Answer(ask)
        while answer.finish is None:
            piece = pieces.get()
            answer.add(piece)
            if piece.finish is not None and piece.finish.startswith("error"):
                self._event({"error": {"message": piece.finish}})
            else:
                self._event(answer.document(piece.ids, piece.logprobs))
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, document: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Answer:
    """An answer so far, in SGLang's form. `completion_tokens` counts all of it, also where an event carries only what is new."""

    def __init__(self, ask: Ask) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish: str | None = None
        self._ask = ask
        self._version = ""
        self._stop: int | None = None

    def add(self, piece: Piece) -> None:
        self.ids += piece.ids
        self.logprobs += piece.logprobs
        self.finish = piece.finish
        # An aborted answer's last word is under the next version; its tokens are not.
        if piece.ids or not self._version:
            self._version = piece.version

    def document(self, ids: list[int], logprobs: list[float]) -> dict[str, Any]:
        return {
            "text": "",
            "output_ids": ids,
            "meta_info": {
                "id": self._ask.rid,
                "finish_reason": self._finish_reason(),
                "prompt_tokens": len(self._ask.prompt_ids),
                "completion_tokens": len(self.ids),
                "cached_tokens": 0,
                "weight_version": self._version,
                "output_token_logprobs": [[logprob, token, None] for logprob, token in zip(logprobs, ids)],
            },
        }

    def _finish_reason(self) -> dict[str, Any] | None:
        if self.finish is None:
            return None
        if self.finish == "length":
            return {"type": "length", "length": len(self.ids)}
        if self.finish == "stop":
            return {"type": "stop", "matched": self.ids[-1]}
        return {"type": "abort", "message": "new weights, or the request was aborted"}
