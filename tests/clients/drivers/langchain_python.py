"""What LangChain's ChatOpenAI and OpenAI make of answers."""

from __future__ import annotations

from typing import Any

from jobs import PATIENCE_S, Job, serve
from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

OWN = ("model", "n", "seed", "temperature", "top_p", "max_tokens")
CHAT = (*OWN, "logprobs", "top_logprobs")
EXTRA = ("chat_template_kwargs",)


class Found(BaseModel):
    """What the structured answers hold."""

    answer: str


def chat(job: Job) -> ChatOpenAI:
    """Return the model that asks for what a body asks for."""
    body = job["body"]
    return ChatOpenAI(
        base_url=job["base_url"],
        api_key="none",
        max_retries=0,
        timeout=PATIENCE_S,
        stream_usage=True,
        extra_body={name: body[name] for name in EXTRA if name in body} or None,
        **{name: body[name] for name in CHAT if name in body},
    )


def bound(job: Job) -> Runnable[Any, Any]:
    """Return the same with the body's tools."""
    return chat(job).bind_tools(job["body"]["tools"]) if "tools" in job["body"] else chat(job)


def dumped(message: BaseMessage) -> dict[str, Any]:
    """Return a message as JSON."""
    return message.model_dump(mode="json")


def invoke(job: Job) -> dict[str, Any]:
    """Ask for one message."""
    return {"answer": dumped(bound(job).invoke(job["body"]["messages"]))}


def stream(job: Job) -> dict[str, Any]:
    """Add up the chunks of one message."""
    first, *more = bound(job).stream(job["body"]["messages"])
    return {"answer": dumped(sum(more, first))}


async def stream_async(job: Job) -> dict[str, Any]:
    """Do the same, awaiting."""
    first, *more = [chunk async for chunk in bound(job).astream(job["body"]["messages"])]
    return {"answer": dumped(sum(more, first))}


def generate(job: Job) -> dict[str, Any]:
    """Ask for n messages."""
    tools = {name: job["body"][name] for name in ("tools",) if name in job["body"]}
    made = chat(job).generate([convert_to_messages(job["body"]["messages"])], **tools)
    choices = [{"message": dumped(one.message), "info": one.generation_info} for one in made.generations[0]]
    return {"answer": {"choices": choices, "usage": (made.llm_output or {}).get("token_usage")}}


def structured(job: Job) -> dict[str, Any]:
    """Ask for an object."""
    asked = chat(job).with_structured_output(Found, method="json_schema", include_raw=True)
    return read(asked.invoke(job["body"]["messages"]))


def structured_stream(job: Job) -> dict[str, Any]:
    """Ask for an object as it comes."""
    asked = chat(job).with_structured_output(Found, method="json_schema", include_raw=True)
    told: dict[str, Any] = {}
    for part in asked.stream(job["body"]["messages"]):
        for name, value in part.items():
            told[name] = told[name] + value if name == "raw" and name in told else value
    return read(told)


def read(told: dict[str, Any]) -> dict[str, Any]:
    """Return what was parsed, and of what. Raises: what the parser raised."""
    if told.get("parsing_error") is not None:
        raise told["parsing_error"]
    return {"answer": {"message": dumped(told["raw"]), "parsed": told["parsed"].model_dump()}}


def text(job: Job) -> dict[str, Any]:
    """Ask for text completions; the parts of a stream are joined."""
    body = job["body"]
    given = {name: body[name] for name in OWN if name in body}
    model = OpenAI(base_url=job["base_url"], api_key="none", max_retries=0, timeout=PATIENCE_S, **given)
    if job["stream"]:
        return {"answer": "".join(model.stream(body["prompt"]))}
    made = model.generate([body["prompt"]])
    choices = [{"text": one.text, "info": one.generation_info} for one in made.generations[0]]
    return {"answer": {"choices": choices, "usage": (made.llm_output or {}).get("token_usage")}}


CALLS = (generate, invoke, stream, stream_async, structured, structured_stream, text)

if __name__ == "__main__":
    serve({call.__name__: call for call in CALLS})
