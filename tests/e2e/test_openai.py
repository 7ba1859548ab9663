"""The official OpenAI client against `swapmoe serve`."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.support.models import make_tiny
from tests.support.server import Server, serving

pytestmark = pytest.mark.usefixtures("installed")

QUESTION: Any = [{"role": "user", "content": "Why is the sky blue?"}]
ASKED: dict[str, Any] = {
    "model": "any",
    "messages": QUESTION,
    "max_tokens": 8,
    "temperature": 0,
    "extra_body": {"ignore_eos": True},
}


@contextmanager
def client_of(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
        yield client


def answer(client: OpenAI) -> str:
    """The text of a chat answer of eight tokens."""
    found = client.chat.completions.create(**ASKED)
    assert found.usage is not None
    assert found.usage.completion_tokens == 8
    message = found.choices[0].message
    return message.content or message.model_extra.get("reasoning_content", "")


def streamed(client: OpenAI) -> str:
    """The same text, as it comes in pieces."""
    pieces = [
        piece.choices[0].delta
        for piece in client.chat.completions.create(**ASKED, stream=True)
        if piece.choices
    ]
    assert len(pieces) > 2
    return "".join(
        delta.content or (delta.model_extra or {}).get("reasoning_content", "") for delta in pieces
    )


def test_chat_streaming_three_clients_and_a_restart(tmp_path: Path) -> None:
    model = make_tiny(tmp_path, "tiny-qwen3moe")
    with serving(model, tmp_path / "log", "--prefetch") as server, client_of(server) as client:
        assert len(client.models.list().data) == 1
        text = answer(client)
        assert text
        assert streamed(client) == text
        with ThreadPoolExecutor(3) as pool:
            found = [pool.submit(one_of_many, server) for _ in range(3)]
            assert [job.result(120) for job in found] == [text] * 3
        assert server.stop()[0] == 0
    with serving(model, tmp_path / "log", "--prefetch") as server, client_of(server) as client:
        assert answer(client) == text
        assert server.stop()[0] == 0


def one_of_many(server: Server) -> str:
    with client_of(server) as client:
        return answer(client)
