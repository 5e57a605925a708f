"""Tell the model something in words: an instruction is added to a request's prompt, in whichever field that is.

messages (chat) · instructions and input (responses) · prompt (completions)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from proxy.body import Body

Speaker = Literal["system", "user"]
_ROLES: Final[dict[Speaker, tuple[str, ...]]] = {"system": ("system", "developer"), "user": ("user",)}


def instructed(body: Body, text: str, speaker: Speaker) -> Body | None:
    """Return the body with the text at the end of the system's or the user's words; None where there is no prompt."""
    messages = body.get("messages")
    if isinstance(messages, list):
        return body.put(("messages",), _told(messages, text, speaker))
    if "input" in body:
        return _instructed_response(body, text, speaker)
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return body.put(("prompt",), f"{text}\n\n{prompt}")
    if isinstance(prompt, list) and prompt and all(isinstance(one, str) for one in prompt):
        return body.put(("prompt",), [f"{text}\n\n{one}" for one in prompt])
    return None


def _instructed_response(body: Body, text: str, speaker: Speaker) -> Body | None:
    name = "instructions" if speaker == "system" else "input"
    words = body.get(name)
    if words is None or isinstance(words, str):
        return body.put((name,), _joined(words, text))
    if name == "input" and isinstance(words, list):
        return body.put((name,), [*words, {"role": "user", "content": text}])
    return None


def _told(messages: Sequence[Any], text: str, speaker: Speaker) -> list[Any]:
    # The first system message and the last user's: where templates look for them.
    order = range(len(messages)) if speaker == "system" else reversed(range(len(messages)))
    for index in order:
        message = messages[index]
        if isinstance(message, dict) and message.get("role") in _ROLES[speaker]:
            content = _joined(message.get("content"), text)
            if content is not None:
                return [*messages[:index], message | {"content": content}, *messages[index + 1 :]]
    new = {"role": speaker, "content": text}
    return [new, *messages] if speaker == "system" else [*messages, new]


def _joined(content: Any, text: str) -> str | list[Any] | None:
    """Return the content with the text at its end; None where it is of no type that can hold it."""
    if not content and not isinstance(content, dict):
        return text
    if isinstance(content, str):
        return f"{content}\n\n{text}"
    return [*content, {"type": "text", "text": text}] if isinstance(content, list) else None
