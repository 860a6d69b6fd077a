"""Signatures of what stands between the server and its users: clients, proxies, and requests that ask too much."""

from __future__ import annotations

from runbooks.diagnose.signature import Signature


def requests() -> tuple[Signature, ...]:
    return (
        Signature(
            "too-long",
            r"sequence length is longer than|(?:input|prompt|request).{0,40}(?:longer than|exceeds?).{0,60}"
            r"(?:context|maximum|max_|limit)|maximum context length is",
            "a request is longer than the model's context",
            "the client must ask for less; the server is not at fault",
            "canary-degraded",
            "sglang #18980",
            rank=6,
        ),
        Signature(
            "tool-call-text",
            r'"content": ?"[^"]*<(?:tool_call|arg_key|arg_value)>',
            "a tool call came as text: no parser, or speculative decoding with thinking on",
            "tool_call_parser glm47 in the profile",
            "canary-degraded",
            "vllm #34449, PR #35936",
            rank=4,
        ),
        Signature(
            "queue-full",
            r"request queue is full|max_queued_requests.{0,40}(?:reached|exceeded)",
            "more requests wait than the server lets wait: the rest are turned away with 503",
            "fewer clients at once, another replica, or a higher max_queued_requests in the profile",
            "slow-throughput",
            "sglang managers/scheduler.py",
            rank=6,
        ),
        Signature(
            "wrong-key",
            r"[\"'](?:message|detail|error)[\"']: ?[\"'](?:Unauthorized|Invalid API key)|invalid_api_key"
            r"|HTTP/\d\.\d 401|AuthenticationError: Error code: 401",
            "the server refuses the API key",
            "server.api_key in the inventory must be the one that the release was deployed with",
            "server-down",
            "HTTP 401",
            rank=5,
        ),
        Signature(
            "client-breaks",
            r"IndexError: list index out of range|KeyError: 'choices'|unsupported operand .*NoneType"
            r"|ZeroDivisionError|statistics.*NoneType",
            "the measuring client breaks on the last chunk, which has no choices; the server is well",
            "invoke bench reads that chunk as what it is",
            "slow-throughput",
            "sglang #14826; vllm #5895, PR #54708",
            rank=3,
            needs=r"bench|benchmark|ttft",
        ),
    )


def between() -> tuple[Signature, ...]:
    """What a proxy or a client saw of a server's death: an echo, blamed only where nothing better is found."""
    return (
        Signature(
            "router-worker",
            r"Failed to send typed request worker_url|call_upstream_request_error|no_available_workers",
            "a router has lost a server behind it, or all of them; its own /health goes on saying 200",
            "invoke health on the worker that the line names; the router's /readiness counts those left",
            "server-down",
            "sglang-router 0.3.2",
            rank=4,
        ),
        Signature(
            "no-server-behind",
            r"while (?:connecting to|reading response header from) upstream|upstream prematurely closed"
            r"|no live upstreams|^(?!.*(?:Failed to fetch|https://)).*\b50[24] (?:Bad Gateway|Gateway Time-?out)"
            r"|upstream (?:timed out|connect error)|(?:proxy|traefik)\b.*dial tcp .*: connect:"
            r"|dial tcp .*: connect: .*proxy",
            "a proxy answers, and the server behind it does not",
            "invoke health on the host of the server itself",
            "server-down",
            "nginx, haproxy, envoy",
            rank=5,
        ),
        Signature(
            "no-answer",
            r"Empty reply from server|Failed to connect to (?:127\.|localhost).* port|Remote(?:Protocol|Disconnected)"
            r"|ServerDisconnectedError|ClientPayloadError|APIConnectionError|incomplete chunked read"
            r"|Connect(?:ion)?Error.*(?:30000|Connection refused)",
            "a client got no answer, or only the beginning of one: the server is down, or died under it",
            "invoke health; then invoke diagnose on the host: its own log says why",
            "server-down",
            "curl, httpx, aiohttp, openai",
            rank=7,
        ),
        Signature(
            "client-gave-up",
            r"APITimeoutError|\bhttpx\.(?:Read|Connect|Pool|Write)Timeout|(?:Socket|Server)TimeoutError",
            "a client waited longer than it wanted to: a long queue, a long prompt, or a server that hangs",
            "invoke health tells busy from stuck",
            "slow-throughput",
            "httpx, openai",
            rank=7,
        ),
    )
