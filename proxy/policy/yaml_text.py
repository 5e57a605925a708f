"""YAML text → values, and where in the text each of them stands.

YAML 1.2's core schema, cut down to what JSON can say and a reader can trust: `yes`, `on`, `off` are strings, 010 is
ten, no tags, no merge keys, no key twice, one document, aliases within bounds.

Source: YAML 1.2.2 §10.3 (core schema); PyYAML's scanner, parser and composer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from proxy.errors import Fault, PolicyFault
from proxy.matching import KEY
from proxy.policy.scalars import BadScalar, read_scalar

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 100_000  # aliases unfolded; a "billion laughs" ends here

Place = tuple[Any, ...]
"""The keys and indices that lead to a value; keys may be null, numbers and booleans too."""

Position = tuple[int, int]
"""Units: line and column, both counted from 1."""


@dataclass(frozen=True, slots=True)
class Document:
    """The value of a YAML text and the positions of its parts. A place that ends with KEY is that of the key."""

    file: str
    value: Any
    marks: Mapping[Place, Position]

    def position(self, place: Place) -> Position:
        """Return where the place stands in the text, or else the nearest thing around it."""
        while place and place not in self.marks:
            place = place[:-1]
        return self.marks.get(place, (1, 1))

    def fault(self, place: Place, message: str) -> Fault:
        """Return the fault at that place."""
        return Fault(message, self.file, *self.position(place))


def decode_text(source: bytes, file: str) -> str:
    """Return the text of a file.

    Raises: PolicyFault where its bytes are not UTF-8.
    """
    try:
        return source.decode()
    except UnicodeDecodeError as error:
        line, column = _line_and_column(source[: error.start].decode())
        raise PolicyFault([Fault("not UTF-8: save the file in that encoding", file, line, column)]) from error


def _line_and_column(before: str) -> Position:
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def parse_yaml(text: str, file: str) -> Document:
    """Return the one document of the text.

    Raises: PolicyFault with every duplicate key, tag and merge key, or the one place where the text stops being YAML.
    """
    if text.startswith("\ufeff"):
        raise PolicyFault([Fault("the file begins with a byte order mark: save it as UTF-8 without one", file)])
    reader = _Reader(file)
    value = reader.read(_compose(text, file), ())
    if reader.faults:
        raise PolicyFault(reader.faults)
    return Document(file, value, reader.marks)


class _TooDeep(yaml.MarkedYAMLError):
    """The text is nested deeper than any policy has to be."""


@dataclass(slots=True)
class _Mark:
    """Where something stands. There are two for each value: PyYAML's own take four times the memory."""

    line: int
    column: int


class _Loader(yaml.BaseLoader):
    """A composer that notes how a scalar was written, and leaves its type to us."""

    depth = 0

    def get_mark(self) -> Any:
        return _Mark(self.line, self.column)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.depth > MAX_DEPTH:
            raise _TooDeep(problem=f"nested more than {MAX_DEPTH} deep", problem_mark=self.current_event.start_mark)
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        if node is not None:
            node.end_mark = None
        return node

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is not yaml.ScalarNode:
            return ""
        return "plain" if implicit[0] else "quoted"


def _compose(text: str, file: str) -> yaml.Node:
    try:
        loader = _Loader(text)
        node: yaml.Node | None = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise PolicyFault([_syntax_fault(error, file)]) from error
    except yaml.reader.ReaderError as error:
        line, column = _line_and_column(text[: error.position])
        message = f"the character U+{error.character:04X} can't stand in YAML"
        raise PolicyFault([Fault(message, file, line, column)]) from error
    except (ValueError, OverflowError) as error:  # "\U00110000", %YAML with too many digits
        mark = loader.get_mark()
        raise PolicyFault([Fault(f"not YAML: {error}", file, mark.line + 1, mark.column + 1)]) from error
    if node is None:
        raise PolicyFault([Fault("the file is empty: a policy needs at least `version: 1` and `backends`", file)])
    return node


def _syntax_fault(error: yaml.MarkedYAMLError, file: str) -> Fault:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "unexpected text"
    if "another document" in problem:
        problem = "a second document begins here: a policy is one document"
    elif "'\\t'" in problem:
        problem = "a tab can't indent YAML: use spaces"
    elif "but got '{'" in problem:
        problem = 'a { can not begin here: inside {} and [] a variable is written in quotes, "${NAME}"'
    elif error.context and error.problem:
        problem = f"{problem} ({error.context})"
    position = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return Fault(problem if isinstance(error, _TooDeep) else f"not YAML: {problem}", file, *position)


class _Reader:
    """Turns nodes into values and notes where they stand."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.faults: list[Fault] = []
        self.marks: dict[Place, Position] = {}
        self._open: set[int] = set()

    def read(self, node: yaml.Node, place: Place) -> Any:
        """Return the node's value; what is wrong with it is added to `faults`."""
        self.marks[place] = _position(node)
        if len(self.marks) > MAX_VALUES:
            raise PolicyFault(
                [self._fault(node, f"too large: more than {MAX_VALUES} values once aliases are unfolded")]
            )
        if id(node) in self._open:
            raise PolicyFault([self._fault(node, "an alias stands inside the value that it names")])
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node.tag:
            self._refuse_tag(node)
        self._open.add(id(node))
        value = self._mapping(node, place) if isinstance(node, yaml.MappingNode) else self._list(node, place)
        self._open.remove(id(node))
        return value

    def _list(self, node: yaml.Node, place: Place) -> list[Any]:
        return [self.read(item, (*place, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: yaml.Node, place: Place) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        lines: dict[Any, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.faults.append(self._fault(key_node, "a key can't be a list or mapping"))
                continue
            key = self._scalar(key_node)
            if key == "<<" and key_node.tag == "plain":
                self.faults.append(self._fault(key_node, "merge keys (<<) are not YAML 1.2: write the keys out"))
            elif key in mapping:
                self.faults.append(self._fault(key_node, _repeated(key, mapping, lines[key])))
            else:
                lines[key] = key_node.start_mark.line + 1
                self.marks[(*place, key, KEY)] = _position(key_node)
                mapping[key] = self.read(value_node, (*place, key))
        return mapping

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag not in ("plain", "quoted"):
            self._refuse_tag(node)
        try:
            return read_scalar(node.value, is_plain=node.tag == "plain")
        except BadScalar as bad:
            self.faults.append(self._fault(node, str(bad)))
            return ""

    def _refuse_tag(self, node: yaml.Node) -> None:
        tag = node.tag.replace("tag:yaml.org,2002:", "!!")
        self.faults.append(self._fault(node, f"tags ({tag}) can't be used here: quote what must be a string"))

    def _fault(self, node: yaml.Node, message: str) -> Fault:
        return Fault(message, self.file, *_position(node))


def _repeated(key: Any, mapping: Mapping[Any, Any], line: int) -> str:
    other = next(known for known in mapping if known == key)
    if isinstance(other, bool) is not isinstance(key, bool):
        return f"{_word(key)} and {_word(other)} (line {line}) can't be keys of one table: use two `map` repairs"
    return f'the key "{_word(key)}" stands here twice: first on line {line}'


def _word(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else "null" if key is None else str(key)


def _position(node: yaml.Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1
