"""A list of messages being put into an order that a chat template takes, and what that costs.

    [system, user, user, tool, developer] → [system + developer, user + user + tool]

Each message remembers how many of the client's it stands for, so that the loss is told in the client's terms.

Source: the chat templates of Llama 2, Mistral, Gemma, Qwen 3.5; LlamaFactory's api/chat.py (u/a/u/a/u).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from proxy.repairs.losses import fields_lost, join_losses
from proxy.repairs.messages import is_empty, is_instruction, is_joinable, join, role_of
from proxy.repairs.parts import Loss, counted


class Turn(msgspec.Struct, frozen=True):
    """One message, and how many of the client's it was made of."""

    message: Any
    sources: int = 1

    @property
    def role(self) -> str | None:
        """The message's role."""
        return role_of(self.message)

    @property
    def is_instruction(self) -> bool:
        """Whether it is a system or developer message that can be joined with others."""
        return is_instruction(self.message) and is_joinable(self.message)


class Turns:
    """The messages of one request, edited step by step."""

    def __init__(self, messages: list[Any], separator: str) -> None:
        self._turns = [Turn(message) for message in messages]
        self._separator = separator
        self._losses: list[Loss] = []
        self._lost_fields: list[str] = []
        self.is_changed = False

    def messages(self) -> list[Any]:
        """Return the messages as they are now."""
        return [turn.message for turn in self._turns]

    def loss(self) -> str | None:
        """Return the sentence of what was lost."""
        joined = sum(turn.sources for turn in self._turns if turn.sources > 1)
        boundaries = f"boundaries of {joined} messages" if joined else None
        names = fields_lost(self._lost_fields) if self._lost_fields else None
        return join_losses([counted(self._losses), boundaries, names])

    def drop_empty(self) -> None:
        """Remove the messages that say nothing, unless all do."""
        full = [turn for turn in self._turns if turn.role not in _DROPPABLE or not is_empty(turn.message)]
        if full and len(full) < len(self._turns):
            self._losses += [("empty message", "dropped")] * (len(self._turns) - len(full))
            self._become(full)

    def system_first(self) -> None:
        """Make one leading message of all system and developer messages."""
        system = [turn for turn in self._turns if turn.is_instruction]
        others = [turn for turn in self._turns if not turn.is_instruction]
        leading = next((index for index, turn in enumerate(self._turns) if not turn.is_instruction), len(self._turns))
        late = len(system) - leading
        if late or len(system) > 1:
            self._losses += [("system message", "moved to the front")] * late
            self._become([self._joined(system), *others])

    def system_to_user(self) -> None:
        """Say each system and developer message as the user's, joined with user messages that follow."""
        if not any(turn.is_instruction for turn in self._turns):
            return
        groups: list[list[Turn]] = []
        is_open = False
        for turn in self._turns:
            if turn.is_instruction:
                self._losses.append(("system message", "said as the user's"))
            said = _as_user(turn) if turn.is_instruction else turn
            if is_open and said.role == "user" and is_joinable(said.message):
                groups[-1].append(said)
            else:
                groups.append([said])
            is_open = turn.is_instruction
        self._become([self._joined(group) for group in groups])

    def leading_assistant_to_system(self) -> None:
        """Put what the assistant says before anybody else into the system message."""
        start = next((index for index, turn in enumerate(self._turns) if not turn.is_instruction), len(self._turns))
        end = start
        while end < len(self._turns) and _only_speaks(self._turns[end]):
            end += 1
        if end == start:
            return
        self._losses += [("leading assistant message", "moved to the system message")] * (end - start)
        spoken = [_as_system(turn) for turn in self._turns[start:end]]
        self._lost_fields += [name for turn in self._turns[start:end] for name in _unsaid(turn.message)]
        last = self._turns[start - 1 : start]
        self._become([*self._turns[: start - len(last)], self._joined([*last, *spoken]), *self._turns[end:]])

    def only_system_to_user(self) -> None:
        """Make a user message of the system messages where there are no others."""
        if self._turns and all(turn.is_instruction for turn in self._turns):
            self._losses += [("system message", "said as the user's")] * sum(turn.sources for turn in self._turns)
            self._become([_as_user(self._joined(self._turns))])

    def join_neighbours(self, side_of: Mapping[str, int]) -> None:
        """Join messages that follow one another and whose roles are on the same side."""
        groups: list[list[Turn]] = []
        for turn in self._turns:
            if groups and _belong(groups[-1][-1], turn, side_of):
                groups[-1].append(turn)
            else:
                groups.append([turn])
        if len(groups) < len(self._turns):
            self._become([self._joined(group) for group in groups])

    def _joined(self, turns: list[Turn]) -> Turn:
        if len(turns) == 1:
            return turns[0]
        message, lost = join([turn.message for turn in turns], self._separator)
        self._lost_fields += lost
        return Turn(message, sum(turn.sources for turn in turns))

    def _become(self, turns: list[Turn]) -> None:
        self._turns = turns
        self.is_changed = True


_DROPPABLE: Final = ("user", "assistant", "system", "developer")


def _as_user(turn: Turn) -> Turn:
    return structs.replace(turn, message=turn.message | {"role": "user"})


def _belong(one: Turn, two: Turn, side_of: Mapping[str, int]) -> bool:
    sides = {side_of.get(turn.role or "") for turn in (one, two)}
    return len(sides) == 1 and None not in sides and is_joinable(one.message) and is_joinable(two.message)


def _only_speaks(turn: Turn) -> bool:
    if turn.role != "assistant" or not is_joinable(turn.message) or is_empty(_as_system(turn).message):
        return False
    return not (turn.message.get("tool_calls") or turn.message.get("function_call"))


def _unsaid(message: Mapping[str, Any]) -> list[str]:
    return [name for name, value in message.items() if name not in ("role", "content") and value not in (None, "", [])]


def _as_system(turn: Turn) -> Turn:
    return structs.replace(turn, message={"role": "system", "content": turn.message.get("content")})
