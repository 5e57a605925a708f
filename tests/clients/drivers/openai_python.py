"""What the OpenAI SDK for Python makes of answers."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import openai
from jobs import PATIENCE_S, Job, serve
from openai.resources.chat import Completions
from pydantic import BaseModel

NAMED = inspect.signature(Completions.create).parameters


@cache
def client_of(base_url: str) -> openai.OpenAI:
    """Return the one client of an address."""
    return openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=PATIENCE_S)


@cache
def async_client_of(base_url: str) -> openai.AsyncOpenAI:
    """Return the one client of an address that awaits."""
    return openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=PATIENCE_S)


class Found(BaseModel):
    """What the structured answers hold."""

    answer: str


class GetWeather(BaseModel):
    """The arguments of the one tool."""

    city: str


def plain(job: Job) -> dict[str, Any]:
    """Return the SDK's arguments for a body; what it has no name for goes into extra_body."""
    named = {name: value for name, value in job["body"].items() if name in NAMED or name == "prompt"}
    return named | {"extra_body": {name: value for name, value in job["body"].items() if name not in named}}


def typed(job: Job) -> dict[str, Any]:
    """Return the same with the SDK's own types for tools and formats."""
    given = plain(job)
    if "response_format" in given:
        given["response_format"] = Found
    if "tools" in given:
        given["tools"] = [openai.pydantic_function_tool(GetWeather, name="get_weather")]
    return given


def dumped(value: Any) -> Any:
    """Return a model as JSON; the SDK's generic types make pydantic warn."""
    return value.model_dump(mode="json", warnings=False)


def place_of(client: Any, job: Job) -> Any:
    """Return the client's part for a path."""
    return client.completions if job["path"] == "completions" else client.chat.completions


def create(job: Job) -> dict[str, Any]:
    """Ask plainly; a stream is iterated."""
    answer = place_of(client_of(job["base_url"]), job).create(**plain(job), stream=job["stream"])
    if not job["stream"]:
        return {"answer": dumped(answer)}
    with answer:
        return {"chunks": [dumped(chunk) for chunk in answer]}


async def create_async(job: Job) -> dict[str, Any]:
    """Do the same, awaiting."""
    answer = await place_of(async_client_of(job["base_url"]), job).create(**plain(job), stream=job["stream"])
    if not job["stream"]:
        return {"answer": dumped(answer)}
    async with answer:
        return {"chunks": [dumped(chunk) async for chunk in answer]}


def stream(job: Job) -> dict[str, Any]:
    """Let the SDK accumulate a stream."""
    with client_of(job["base_url"]).chat.completions.stream(**typed(job)) as events:
        kinds = {event.type for event in events}
        return {"answer": dumped(events.get_final_completion()), "events": sorted(kinds)}


async def stream_async(job: Job) -> dict[str, Any]:
    """Do the same, awaiting."""
    async with async_client_of(job["base_url"]).chat.completions.stream(**typed(job)) as events:
        kinds = {event.type async for event in events}
        return {"answer": dumped(await events.get_final_completion()), "events": sorted(kinds)}


def parse(job: Job) -> dict[str, Any]:
    """Let the SDK read a whole answer's text and arguments."""
    return {"answer": dumped(client_of(job["base_url"]).chat.completions.parse(**typed(job)))}


async def parse_async(job: Job) -> dict[str, Any]:
    """Do the same, awaiting."""
    return {"answer": dumped(await async_client_of(job["base_url"]).chat.completions.parse(**typed(job)))}


if __name__ == "__main__":
    serve({call.__name__: call for call in (create, create_async, parse, parse_async, stream, stream_async)})
