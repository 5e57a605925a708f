"""What a client was answered: events of a stream, and each choice's message, put together as a client does it.

Written for the tests alone, so that the proxy's own reading of answers is not what its answers are judged by.
"""

import json
from dataclasses import dataclass, field

DONE = "[DONE]"


@dataclass(slots=True)
class Choice:
    """A choice as a client has it in the end."""

    message: dict = field(default_factory=dict)
    finish: str | None = None
    logprobs: int = 0
    deltas: list = field(default_factory=list)

    def take(self, part, delta):
        """Take a choice of a chunk."""
        self.deltas.append((part, delta))
        for key, value in delta.items():
            if key == "tool_calls":
                self._take_calls(value or [])
            elif value is not None or key not in self.message:
                old = self.message.get(key)
                self.message[key] = old + value if isinstance(old, str) and isinstance(value, str) else value
        self.finish = part.get("finish_reason") or self.finish
        self.logprobs += len((part.get("logprobs") or {}).get("content") or [])

    def _take_calls(self, calls):
        made = self.message.setdefault("tool_calls", [])
        for call in calls:
            while len(made) <= call["index"]:
                made.append({"function": {"arguments": ""}})
            mine, said = made[call["index"]], call.get("function") or {}
            mine |= {key: value for key, value in call.items() if key not in ("index", "function") and value}
            mine["function"] |= {"name": said["name"]} if said.get("name") else {}
            mine["function"]["arguments"] += said.get("arguments") or ""


@dataclass(slots=True)
class Told:
    """An answer's body, read as what its head says it is."""

    events: list
    choices: dict
    usages: list
    whole: object = None

    @property
    def chunks(self):
        """The events that are JSON objects."""
        return [event for event in self.events if isinstance(event, dict)]

    @property
    def errors(self):
        """The errors that were told: an event's, or the whole answer's."""
        said = [self.whole] if self.whole is not None else self.chunks
        return [one.get("error", one) for one in said if isinstance(one, dict) and _is_error(one)]


def _is_error(said):
    return bool(said.get("error")) or said.get("object") == "error"


def read_answer(answer):
    """Return what the answer tells."""
    label = (answer.get("content-type") or "").lower()
    if label.startswith("text/event-stream"):
        return _stream(events_of(answer.body))
    try:
        whole = json.loads(answer.body)
    except (ValueError, RecursionError):
        whole = None
    return _whole(whole)


def events_of(body):
    """Return the data of the events, JSON where it is some, the sentinel as text. Raises: AssertionError."""
    events = []
    for block in body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        lines = [line for line in block.split(b"\n") if line and not line.startswith(b":")]
        data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        if not data:
            continue
        text = b"\n".join(data).decode()
        events.append(text if text == DONE else json.loads(text, parse_constant=_no_json))
    return events


def _no_json(name):
    raise AssertionError(f"{name} is no JSON")


def _stream(events):
    told = Told(events, {}, [])
    for chunk in told.chunks:
        for part in chunk.get("choices") or []:
            delta = part["delta"] if "delta" in part else {"content": part.get("text")}
            told.choices.setdefault(part["index"], Choice()).take(part, delta)
        if chunk.get("usage"):
            told.usages.append((chunk["usage"], chunk))
    return told


def _whole(whole):
    told = Told([], {}, [], whole)
    if isinstance(whole, dict):
        for part in whole.get("choices") or []:
            choice = told.choices.setdefault(part["index"], Choice())
            choice.message = part["message"] if "message" in part else {"content": part.get("text")}
            choice.finish = part.get("finish_reason")
            choice.logprobs = len((part.get("logprobs") or {}).get("content") or [])
        if whole.get("usage"):
            told.usages.append((whole["usage"], whole))
    return told


def unsound(told):
    """Return in words what makes a merged stream none that OpenAI would send."""
    found = []
    if told.events.count(DONE) != 1 or told.events[-1] != DONE:
        found.append("there is not one [DONE], at the end")
    for key in ("id", "created", "model", "object"):
        said = {json.dumps(chunk.get(key)) for chunk in told.chunks}
        if len(said) != 1 or said <= {"null", '""'}:
            found.append(f"the chunks have as {key}: {sorted(said)}")
    if list(told.choices) != sorted(told.choices):
        found.append(f"the choices come in the order {list(told.choices)}")
    for index, choice in told.choices.items():
        found += [f"choice {index}: {what}" for what in _unsound_choice(choice)]
    return found


def _unsound_choice(choice):
    roles = [delta["role"] for _, delta in choice.deltas if "role" in delta]
    if roles != ["assistant"] or "role" not in choice.deltas[0][1]:
        yield f"its roles are {roles}, or not first"
    finishes = [part.get("finish_reason", "absent") for part, _ in choice.deltas]
    if any(finish is not None for finish in finishes[:-1]) or not finishes[-1] or finishes[-1] == "absent":
        yield f"its finish_reasons are {finishes}"
