"""What is done and said when the server is ready: a request that warms it, then the greeting."""

from __future__ import annotations

import socket

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from radixlm.build import ModelInfo
from radixlm.core.errors import counted
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.envelope import UNLOGGED

_MIB = 2**20
_GIB = 2**30
# No useful prompt fits into a smaller pool.
_USEFUL_TOKENS = 512
_CHAT = '/v1/chat/completions -d \'{"messages": [{"role": "user", "content": "Hello"}]}\''
_COMPLETION = '/v1/completions -d \'{"prompt": "Once upon a time", "max_tokens": 32}\''


async def touch(app: ASGIApp, config: ServerConfig, *, chats: bool) -> None:
    """Have a short text tokenized, a chat where there is a template for it: routes, readers and
    writers are used once; nothing counts it.
    """

    async def unlogged(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, UNLOGGED: True}, receive, send)

    asked = {"messages": [{"role": "user", "content": "Hello"}]} if chats else {"prompt": "Hello"}
    key = config.api_key[0] if config.api_key else ""
    transport = httpx.ASGITransport(unlogged, root_path=config.root_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        headers = {"Authorization": f"Bearer {key}"}
        await client.post(f"{config.root_path}/tokenize", json=asked, headers=headers)


def welcome(
    name: str, info: ModelInfo, listener: socket.socket, config: ServerConfig, *, chats: bool
) -> str:
    """name: what clients ask for. chats: whether the model has a chat template."""
    place, url, tool = _address(listener, config)
    threads = f", {counted(info.threads, 'thread')}" if info.device == "cpu" else ""
    return (
        f"RadixLM serves {name} on {place}\n"
        f"  model    {info.model_type}, {info.dtype} on {info.device}{threads}\n"
        f"  context  {info.context_length:,} tokens\n"
        f"  KV pool  {info.kv_tokens:,} tokens, {_size(info.kv_bytes)}{_limit(info)}\n"
        f"  page     {url}/ui\n"
        f"try:\n  {tool} {url}{_CHAT if chats else _COMPLETION}"
    )


def pool_warning(info: ModelInfo) -> str | None:
    """What to warn of where no useful prompt fits into the pool; else None."""
    if info.kv_tokens >= min(_USEFUL_TOKENS, info.context_length):
        return None
    return (
        f"The KV pool has room for only {info.kv_tokens} tokens, prompt and answer together: "
        "most requests will be refused. Give it more with --kv-tokens"
    )


def _limit(info: ModelInfo) -> str:
    if info.kv_tokens >= info.context_length:
        return ""
    return "; less than the context, so prompt and answer are at most that long"


def _size(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / _MIB:.1f} MiB"


def _address(listener: socket.socket, config: ServerConfig) -> tuple[str, str, str]:
    """Where the server listens, its URL, and a curl that reaches it."""
    scheme = "http" if config.ssl_certfile is None else "https"
    tool = "curl" if config.ssl_certfile is None else "curl -k"
    if config.uds is None:
        host = config.host
        at = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(  # noqa: S104
            host, f"[{host}]" if ":" in host else host
        )
        place = url = f"{scheme}://{at}:{listener.getsockname()[1]}"
    else:
        place, url, tool = config.uds, f"{scheme}://localhost", f"{tool} --unix-socket {config.uds}"
    if config.api_key:
        tool += " -H 'Authorization: Bearer KEY'"
    return place, url, tool
