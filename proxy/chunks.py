"""Chunks and answers as JSON: read and write them, and tell what they say.

    event's data → chunk (dict) → a failure? proof of life? which choices?

What is handed in is never changed; what is handed out shares values with it.

Source: OpenAI API reference (chat.completion, chat.completion.chunk, text_completion); sglang 0.5.23, LlamaFactory,
transformers serve 5.24 and llama-cpp-python 0.3.36 as recorded in tests/data/streams.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from proxy.errors import BackendFault

Kind = Literal["chat", "text"]
INVALID: Final = "invalid_answer"
INCOMPLETE: Final = "http_response_incomplete"  # RFC 9209 §2.3.7
FAILED_FINISHES: Final = ("abort", "error")  # sglang's for a request that was aborted, OpenRouter's for one that broke
IDENTITY: Final[tuple[str, ...]] = ("id", "object", "created", "model", "system_fingerprint")
IDENTITY_TYPES: Final[Mapping[str, type]] = {"id": str, "object": str, "created": int, "model": str}
OBJECTS: Final[Mapping[Kind, str]] = {"chat": "chat.completion.chunk", "text": "text_completion"}


_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_TOLD_FAILURE: Final = re.compile(rb'\s*\{\s*"error"\s*:\s*"?')


def decode_chunk(data: bytes) -> dict[str, Any]:
    """Return the JSON object in an event's data; what RFC 8259 has no word for (NaN, lone surrogates) is replaced.

    Raises: BackendFault, `invalid_answer` unless the text is a failure that the backend wrote without escaping it.
    """
    try:
        value = _decode(data)
    except (ValueError, RecursionError) as error:
        raise _unreadable(data) from error
    if not isinstance(value, dict):
        raise _unreadable(data)
    return value


def decode_answer(data: bytes) -> dict[str, Any]:
    """Return the JSON object that a whole answer is. Raises: as `decode_chunk`."""
    return decode_chunk(data)


def _decode(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        text = data.decode("utf-8-sig", "replace")
        return _scrub(json.loads(text, parse_constant=lambda _: None, strict=False))


def _scrub(value: Any) -> Any:
    """Return `value` as RFC 8259 can say it: non-finite numbers are null, lone surrogates U+FFFD."""
    if isinstance(value, str):
        if not _SURROGATE.search(value):
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_scrub(item) for item in value]
    if isinstance(value, dict):
        return {_scrub(key): _scrub(item) for key, item in value.items()}
    return value


def _unreadable(data: bytes) -> BackendFault:
    told = _TOLD_FAILURE.match(data)
    if told:  # transformers serve pastes the text between quotes as it is
        text = data[told.end() :].rstrip().removesuffix(b"}").rstrip().removesuffix(b'"')
        return BackendFault(text.decode("utf-8", "replace"))
    return invalid("it is no JSON object, or nested too deeply")


def invalid(reason: str) -> BackendFault:
    """Return the failure of an answer that can't be read."""
    return BackendFault(f"The backend's answer can't be read: {reason}.", code=INVALID)


def encode_json(value: Any) -> bytes:
    """Return `value` as JSON that any strict reader takes.

    Raises: BackendFault `invalid_answer` where it is nested too deeply or holds a number of thousands of digits.
    """
    try:
        return _encode(value)
    except (RecursionError, ValueError) as error:
        raise invalid("it is nested too deeply, or a number is too long") from error


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_scrub(value))


def failure_of(chunk: Mapping[str, Any], event: str = "") -> BackendFault | None:
    """Return the failure that a chunk (or an answer) tells of; `event` is the name of its event.

    Shape: `{"error": {…}}`, `{"error": "text"}`, `{"object": "error", "message": …}`, `event: error` with any object.
    """
    if "error" not in chunk and chunk.get("object") != "error" and event != "error":
        return None
    error = chunk.get("error")
    if not error:
        if chunk.get("object") != "error" and event != "error":
            return None
        error = chunk
    if not isinstance(error, Mapping):
        error = {"message": error if isinstance(error, str) else text(error)}
    return BackendFault(
        _message_of(error),
        status=_status_of(error.get("code")),
        type=error["type"] if isinstance(error.get("type"), str) else None,
        code=error.get("code"),
        param=error.get("param"),
    )


def _message_of(error: Mapping[str, Any]) -> str:
    told = error.get("message") or error.get("detail") or error
    return told if isinstance(told, str) else text(told)


def _status_of(code: Any) -> int:
    if isinstance(code, str) and code.isdecimal() and len(code) == len("400"):
        code = int(code)
    return int(code) if isinstance(code, (int, float)) and 400 <= code <= 599 else 502


def text(value: Any) -> str:
    """Return a value as JSON text."""
    return encode_json(value).decode()


def is_blank(value: Any) -> bool:
    """Return whether a field says nothing: null, or an empty string, list or object. 0 and false do say something."""
    return not value and not isinstance(value, (int, float))


def is_life(chunk: Mapping[str, Any]) -> bool:
    """Return whether a chunk proves that the answer has begun: anything beyond a role, or a good finish_reason."""
    for _, choice in indexed_choices(chunk):
        finish = choice.get("finish_reason")
        if (finish and finish not in FAILED_FINISHES) or choice.get("text"):
            return True
        if speaks(choice):
            return True
    return False


def indexed_choices(answer: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return an answer's or a chunk's choices with their indexes, in its order; one without an index has its position.

    Raises: BackendFault `invalid_answer`.
    """
    choices = answer.get("choices")
    if choices is None:
        return []
    if not isinstance(choices, list):
        raise invalid("its choices are no list")
    found = []
    for position, choice in enumerate(choices):
        if not isinstance(choice, dict):
            raise invalid("a choice is no object")
        index = choice.get("index")
        found.append((index if type(index) is int and index >= 0 else position, choice))
    return found


def choices_of(answer: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return a whole answer's choices with their indexes, from 0 also where the backend counts from 1.

    Where two have the same index, each has its position. Raises: as `indexed_choices`.
    """
    found = indexed_choices(answer)
    told = {index for index, _ in found}
    if len(told) < len(found):
        return [(position, choice) for position, (_, choice) in enumerate(found)]
    if told == set(range(1, len(found) + 1)):
        return [(index - 1, choice) for index, choice in found]
    return found


def with_deltas(chunk: dict[str, Any], spoken: Collection[int]) -> dict[str, Any]:
    """Return a chunk whose choices speak by deltas alone, where some hold a `message` as a whole answer does.

    A message of a choice that has `spoken` only repeats what the deltas brought. Raises: as `indexed_choices`.
    """
    choices = indexed_choices(chunk)
    if not any("message" in choice for _, choice in choices):
        return chunk
    return chunk | {"choices": [_with_delta(choice, is_new=index not in spoken) for index, choice in choices]}


def _with_delta(choice: dict[str, Any], *, is_new: bool) -> dict[str, Any]:
    message, rest = choice.get("message"), {key: value for key, value in choice.items() if key != "message"}
    return rest | {"delta": message} if is_new and isinstance(message, dict) and not speaks(choice) else rest


def speaks(choice: Mapping[str, Any]) -> bool:
    """Return whether a choice of a chunk has a delta with more than a role."""
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(key != "role" and not is_blank(delta[key]) for key in delta)


def kind_of(answer: Mapping[str, Any], choices: Sequence[tuple[int, dict[str, Any]]]) -> Kind:
    """Return what an answer or chunk is of, by its object or else its choices."""
    told = answer.get("object")
    if told == "text_completion" or (not told and any("text" in choice for _, choice in choices)):
        return "text"
    return "chat"


def require_finished(choices: Sequence[Mapping[str, Any]]) -> None:
    """Raises: BackendFault `answer_incomplete`, where there is no choice, or one that has no good finish_reason."""
    if not choices:
        raise incomplete("no choice came")
    for choice in choices:
        reason = choice.get("finish_reason")
        if not reason or reason in FAILED_FINISHES:
            why = f"ended with {reason}" if reason else "has no finish_reason"
            raise incomplete(f"choice {choice.get('index')} {why}")


def identity_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the id, object, created and model of an answer or chunk: those that are there and of their types."""
    return {key: answer[key] for key, kind in IDENTITY_TYPES.items() if answer.get(key) and type(answer[key]) is kind}


def incomplete(reason: str) -> BackendFault:
    """Return the failure of an answer that did not come to its end."""
    return BackendFault(
        f"The backend's answer is incomplete: {reason}.",
        code="answer_incomplete",
        token=INCOMPLETE,
    )
