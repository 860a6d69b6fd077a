"""The endpoints: who may call, what each answers, with SGLang's status codes and words."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import answers, release, requests, shapes, words
from .engine import Request
from .http import Call, Connection
from .metrics import Board
from .requests import BadRequest, Prompt, Sampling
from .serving import Serving

Handler = Callable[[Call, Connection], None]

FLUSHED = (
    b"Cache flushed.\nPlease check backend logs for more details. "
    b"(When there are running or waiting requests, the operation will not be performed.)\n"
)


class Api:
    def __init__(self, serving: Serving, board: Board) -> None:
        self.serving, self.board = serving, board
        args = serving.resolved.args
        self._key = args.get("api_key")
        self._dialect = shapes.Dialect.of(release.version())
        both = ("GET", "POST")
        self._routes: dict[str, Mapping[str, Handler]] = {
            "/health": {"GET": self.health},
            "/health_generate": {"GET": self.health},
            "/ping": {"GET": self.empty},
            "/": {"GET": lambda _call, out: out.whole(200, "SGLang is running")},
            "/v1/models": {"GET": self.models},
            "/model_info": {"GET": self.model_info},
            "/get_model_info": {"GET": self.model_info},
            "/server_info": {"GET": self.server_info},
            "/get_server_info": {"GET": self.server_info},
            "/v1/loads": {"GET": self.loads},
            "/v1/chat/completions": {"POST": self.chat},
            "/v1/completions": {"POST": self.completions},
            "/generate": {"POST": self.generate, "PUT": self.generate},
            "/tokenize": {"POST": self.tokenize},
            "/v1/tokenize": {"POST": self.tokenize},
            "/flush_cache": dict.fromkeys(both, self.flush),
            "/abort_request": {"POST": self.abort},
        }
        if args.get("enable_metrics"):
            self._routes["/metrics"] = {"GET": self.metrics}

    def handle(self, call: Call, out: Connection) -> None:
        """Answer one request; this is what every connection calls."""
        place = (call.path, call.method)
        self.board.http_requests[place] += 1
        self.board.http_active[place] += 1

        def done() -> None:
            self.board.http_active[place] -= 1

        def status(code: int) -> None:
            self.board.http_responses[(*place, str(code))] += 1

        out.on_done, out.on_status = done, status
        if not self._allowed(call):
            return out.whole(401, {"error": "Unauthorized"}, vary=False)
        route = self._routes.get(call.path)
        if route is None and call.path.startswith("/v1/models/"):
            return self.model(call, out)
        if route is None:
            return out.whole(404, {"detail": "Not Found"})
        if call.method not in route:
            return out.whole(405, {"detail": "Method Not Allowed"}, allow=", ".join(sorted(route)))
        try:
            return route[call.method](call, out)
        except BadRequest as wrong:
            return self._refuse(call, out, wrong)

    def _allowed(self, call: Call) -> bool:
        """Health and metrics are open, as SGLang's utils/auth.py has it; all else wants `Authorization: Bearer KEY`."""
        if not self._key or call.method == "OPTIONS" or call.path.startswith(("/health", "/ready", "/metrics")):
            return True
        scheme, _, key = call.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(key.encode(), str(self._key).encode())

    def _refuse(self, call: Call, out: Connection, wrong: BadRequest) -> None:
        if call.path == "/generate":
            return out.whole(400, {"error": {"message": str(wrong)}})
        if not wrong.validation:
            return out.whole(400, shapes.error(str(wrong)))
        name = "openai_v1_chat_completions" if "chat" in call.path else "openai_v1_completions"
        file = f'File "{Path(__file__).parent}/srt/entrypoints/http_server.py", line 1870, in {name}'
        where = f"  {file}\n    {call.method} {call.path} [{wrong}]"
        return out.whole(400, shapes.error(f"1 validation error:\n  {wrong}\n\n{where}", kind="Bad Request"))

    # Health: one generated token proves that the scheduler turns; any output counts.

    def health(self, call: Call, out: Connection) -> None:
        self.serving.check_health(call.path, lambda ok: out.whole(200 if ok else 503, b""))

    def empty(self, _call: Call, out: Connection) -> None:
        out.whole(200, b"")

    # What this server is.

    def models(self, _call: Call, out: Connection) -> None:
        out.whole(200, {"object": "list", "data": [self._card()]})

    def model(self, call: Call, out: Connection) -> None:
        name = call.path.removeprefix("/v1/models/")
        if name == self.serving.resolved.name:
            return out.whole(200, self._card())
        wrong = {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return out.whole(404, {"error": wrong})

    def _card(self) -> dict[str, Any]:
        name, length = self.serving.resolved.name, self.serving.resolved.context_length
        shown = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
        }
        return {**shown, "max_model_len": length}

    def model_info(self, call: Call, out: Connection) -> None:
        self._deprecated(call)
        resolved = self.serving.resolved
        out.whole(
            200,
            {
                "model_path": resolved.args["model_path"],
                "tokenizer_path": resolved.args["tokenizer_path"],
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": resolved.config.get("model_type"),
                "architectures": resolved.config.get("architectures"),
            },
        )

    def server_info(self, call: Call, out: Connection) -> None:
        self._deprecated(call)
        out.whole(200, self.serving.info())

    def _deprecated(self, call: Call) -> None:
        if call.path.startswith("/get_"):
            new = call.path.replace("/get_", "/")
            self.serving.log.server(
                f"Endpoint '{call.path}' is deprecated and will be removed in a future version. Please "
                f"use '{new}' instead."
            )

    def loads(self, _call: Call, out: Connection) -> None:
        engine = self.serving.engine
        used = sum(one.length for one in engine.running)
        load = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": len(engine.running),
            "num_waiting_reqs": len(engine.waiting),
            "num_used_tokens": used,
            "max_total_num_tokens": engine.limits.max_tokens,
            "max_running_requests": engine.limits.max_running,
            "token_usage": used / engine.limits.max_tokens,
            "gen_throughput": round(self.board.gen_throughput, 2),
        }
        out.whole(200, {"timestamp": time.time(), "version": release.version(), "loads": [load]})

    def metrics(self, _call: Call, out: Connection) -> None:
        out.chunked(200, self.board.text().encode(), "text/plain; version=0.0.4; charset=utf-8")

    # Generating.

    def chat(self, call: Call, out: Connection) -> None:
        body = _json(call)
        prompt = requests.of_messages(body)
        wanted = requests.sampling(body, limit="max_tokens", default=None)
        top = int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
        head = self._head(body)
        answer = answers.Chat(out, head, self._options(body), top=top)
        thinks = self._thinks(body)
        self._start(answer, [prompt], wanted, out, top=top, thinking=self.serving.knobs.thinking if thinks else 0)

    def _thinks(self, body: Mapping[str, Any]) -> bool:
        extra = body.get("chat_template_kwargs") or {}
        return (
            bool(self.serving.resolved.args.get("reasoning_parser")) and extra.get("enable_thinking", True) is not False
        )

    def completions(self, call: Call, out: Connection) -> None:
        body = _json(call)
        if "prompt" not in body:
            raise BadRequest(
                "{'type': 'missing', 'loc': ('body', 'prompt'), 'msg': 'Field required', 'input': {}}", validation=True
            )
        prompts = _prompts(body["prompt"])
        wanted = requests.sampling(body, limit="max_tokens", default=16)
        top = int(body["logprobs"]) if body.get("logprobs") is not None else None
        answer = answers.Text(out, self._head(body), self._options(body), top=top)
        self._start(answer, prompts, wanted, out, top=top)
        if body.get("echo"):
            per = len(answer.requests) // len(prompts)
            answer.echo.update({one: prompts[n // per].text for n, one in enumerate(answer.requests)})

    def generate(self, call: Call, out: Connection) -> None:
        body = _json(call)
        text, ids = body.get("text"), body.get("input_ids")
        if text is None and ids is None:
            raise BadRequest("Either text, input_ids or input_embeds should be provided.")
        prompts = _prompts(text if text is not None else ids)
        wanted = requests.sampling(body.get("sampling_params") or {}, limit="max_new_tokens", default=128)
        top = int(body.get("top_logprobs_num") or 0) if body.get("return_logprob") else None
        batch = isinstance(text if text is not None else (ids or [0])[0], list)
        retractions = "num_retractions" if release.at_least("0.5.12") else "total_retractions"
        answer = answers.Native(
            out, self._head(body), self._options(body), top=top, batch=batch, retractions=retractions
        )
        answer.options.include_usage = False
        self._start(answer, prompts, wanted, out, top=top)

    def _head(self, body: Mapping[str, Any]) -> shapes.Head:
        """The model's name is echoed, whatever it is: SGLang does not check it."""
        return shapes.Head(
            answers.new_id(), int(time.time()), str(body.get("model", self.serving.resolved.name)), self._dialect
        )

    def _options(self, body: dict[str, Any]) -> answers.Options:
        args = self.serving.resolved.args
        return answers.Options(
            body,
            parsed=bool(args.get("reasoning_parser")),
            cache_report=bool(args.get("enable_cache_report")),
            failure=self.serving.failure,
            include_usage=bool(args.get("stream_response_default_include_usage")),
        )

    def _start(
        self,
        answer: answers.Answer,
        prompts: list[Prompt],
        wanted: Sampling,
        out: Connection,
        *,
        top: int | None,
        thinking: int = 0,
    ) -> None:
        context = self.serving.resolved.context_length
        rooms = [requests.fits(prompt, wanted.max_new, context) for prompt in prompts]
        if top is not None and self.serving.failure == "logprob_500":
            return out.whole(
                500,
                shapes.error("Out of range float values are not JSON compliant", kind="InternalServerError", code=500),
            )
        for prompt, room in zip(prompts, rooms, strict=True):
            for copy in range(wanted.n):
                answer.add(self._request(answer, prompt, room, wanted, copy, thinking))
        out.on_gone = lambda: self.serving.drop(answer.requests)
        answer.begin()
        for request in answer.requests:
            self.serving.submit(request)
        return None

    def _request(
        self, answer: answers.Answer, prompt: Prompt, room: int, wanted: Sampling, copy: int, thinking: int
    ) -> Request:
        seed = prompt.seed + copy
        if wanted.temperature > 0:
            seed += wanted.seed if wanted.seed is not None else self.serving.salt()
        first = not answer.requests
        return Request(
            rid=answer.head.id if first else answers.new_id(),
            prompt=prompt.ids,
            max_new=room,
            script=self.serving.script(prompt.text, seed=seed, thinking=thinking, ignore_eos=wanted.ignore_eos),
            eos=self.serving.resolved.eos,
            on_token=answer.token,
            on_finish=answer.finish,
            sampled=wanted.asserts,
            stop=wanted.stop,
            stop_ids=wanted.stop_ids,
            ignore_eos=wanted.ignore_eos,
            streaming=answer.options.stream,
        )

    def tokenize(self, call: Call, out: Connection) -> None:
        ids = [words.token_id(piece) for piece in words.split(str(_json(call).get("prompt", "")))]
        out.whole(200, {"tokens": ids, "count": len(ids), "max_model_len": self.serving.resolved.context_length})

    def flush(self, _call: Call, out: Connection) -> None:
        done = self.serving.flush()
        out.whole(200 if done else 400, FLUSHED if done else b"Flush cache failed.\n", kind="")

    def abort(self, call: Call, out: Connection) -> None:
        body = _json(call)
        if body.get("abort_all") or body.get("rid"):
            self.serving.abort("" if body.get("abort_all") else str(body["rid"]))
        out.whole(200, b"")


def _json(call: Call) -> dict[str, Any]:
    if "json" not in call.headers.get("content-type", "") and call.path.startswith("/v1/"):
        said = "Unsupported Media Type: Only 'application/json' is allowed"
        raise BadRequest(
            f"{{'loc': ['header', 'content-type'], 'msg': \"{said}\", 'type': 'value_error'}}", validation=True
        )
    try:
        found = json.loads(call.body or b"{}")
    except json.JSONDecodeError as wrong:
        said = f"'msg': 'JSON decode error', 'input': {{}}, 'ctx': {{'error': {wrong.msg!r}}}"
        place = f"'loc': ('body', {wrong.pos})"
        raise BadRequest(f"{{'type': 'json_invalid', {place}, {said}}}", validation=True) from None
    except UnicodeDecodeError:
        raise BadRequest("{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'not UTF-8'}", validation=True) from None
    if not isinstance(found, dict):
        raise BadRequest(
            "{'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be a valid dictionary'}",
            validation=True,
        )
    return found


def _prompts(given: Any) -> list[Prompt]:
    """A text, a list of texts, a list of ids, or a list of those."""
    if isinstance(given, str):
        return [requests.of_text(given)]
    if given and isinstance(given[0], int):
        return [requests.of_ids(given)]
    return [requests.of_text(one) if isinstance(one, str) else requests.of_ids(one) for one in given]
