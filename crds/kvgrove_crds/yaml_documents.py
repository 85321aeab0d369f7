"""Reads YAML as the Kubernetes clients do, and remembers where each value stands.

Only what JSON can hold: dates and 1:30 stay text, a lone y or n is a truth value, exotic tags are refused. A key given
twice is refused instead of silently dropped, and what anchors expand to is bounded (I11).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import yaml

MAX_BYTES = 4 * 2**20
MAX_NODES = 200_000
MAX_INT = 2**63
"""Whole numbers are below it, as the API server's."""


class YamlProblem(Exception):
    """Text that is not usable YAML. ``line`` counts from 1, ``document`` too (0: not known)."""

    def __init__(self, rule: str, cure: str, *, line: int, document: int = 0) -> None:
        super().__init__(f"line {line}: {rule}; {cure}")
        self.rule, self.cure, self.line, self.document = rule, cure, line, document


class _Unreadable(yaml.YAMLError):
    """A value that is not what its form or its tag says. PyYAML itself lets Python's own errors through."""

    def __init__(self, rule: str, node: yaml.Node) -> None:
        super().__init__(rule)
        self.rule, self.line = rule, node.start_mark.line + 1


def _scalar(tag: str, kind: str) -> Callable[[yaml.SafeLoader, yaml.ScalarNode], bool | int | float]:
    construct = yaml.SafeLoader.yaml_constructors[tag]

    def judged(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> bool | int | float:
        try:
            value: bool | int | float = construct(loader, node)
        except (ValueError, KeyError, IndexError):
            raise _Unreadable(f"the value cannot be read as {kind}", node) from None
        if isinstance(value, int) and not -MAX_INT <= value < MAX_INT:
            raise _Unreadable("a whole number has at most 64 bits", node)
        return value

    return judged


class _Loader(yaml.SafeLoader):
    """SafeLoader with the types that JSON has, and plain words judged as kubectl's parser judges them."""

    bool_values: ClassVar[dict[str, bool]] = {**yaml.SafeLoader.bool_values, "y": True, "n": False}
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML reads it from the class; filled below)
    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        None: yaml.SafeLoader.construct_undefined,
        **{
            f"tag:yaml.org,2002:{tag}": yaml.SafeLoader.yaml_constructors[f"tag:yaml.org,2002:{tag}"]
            for tag in ("null", "str", "seq", "map")
        },
        **{
            f"tag:yaml.org,2002:{tag}": _scalar(f"tag:yaml.org,2002:{tag}", kind)
            for tag, kind in (("bool", "a truth value"), ("int", "a whole number"), ("float", "a number"))
        },
    }


_BOOL = "(?i:y|n)|yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF"
_INT = "[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)"
_FLOAT = r"[-+]?(?:[.][0-9]+|[0-9]+(?:[.][0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?[.](?:inf|Inf|INF)|[.](?:nan|NaN|NAN)"
for _tag, _pattern, _first in (  # the first that matches wins
    ("bool", _BOOL, "yYnNtTfFoO"),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+0123456789."),
    ("merge", "<<", "<"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """One document that is not empty. ``index`` counts all documents of the text from 1."""

    index: int
    value: Any
    node: yaml.Node

    def line_of(self, location: tuple[str | int, ...]) -> int:
        """The line (from 1) of the value at ``location``, or of its nearest ancestor that exists."""
        node, line = self.node, self.node.start_mark.line
        for part in location:
            if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line
            elif isinstance(node, yaml.MappingNode):
                pair = next((pair for pair in node.value if pair[0].value == str(part)), None)
                if pair is None:
                    break
                line, node = pair[0].start_mark.line, pair[1]
            else:
                break
        return int(line) + 1


def read_documents(text: str) -> Iterator[YamlDocument]:
    """Yields the documents of a text. Raises YamlProblem with the line at the first defect."""
    if len(text) > MAX_BYTES:
        raise YamlProblem(f"a file has at most {MAX_BYTES} characters", "split it", line=1)
    index = 0
    try:
        loader = _Loader(text)
        while loader.check_node():
            index += 1
            node = loader.get_node()
            assert node is not None, "check_node found one"  # noqa: S101
            _measure(node, {}, index)
            value = loader.construct_document(node)
            if value is not None:
                yield YamlDocument(index, value, node)
    except _Unreadable as error:
        cure = "put it in quotes, or correct it"
        raise YamlProblem(error.rule, cure, line=error.line, document=index) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        says = f"not valid YAML: {error.problem or error.context}"
        line = mark.line + 1 if mark is not None else 1
        raise YamlProblem(says, "correct the syntax there or just above", line=line, document=index) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlProblem("a control character is not allowed in YAML", "delete it", line=line) from None
    except RecursionError:
        raise YamlProblem("the document is nested too deeply", "flatten it", line=1, document=index) from None


def _measure(node: yaml.Node, sizes: dict[int, int], index: int) -> int:
    """Nodes below ``node`` with anchors expanded. Refuses duplicate keys, cycles and expansions out of bounds."""
    known = sizes.get(id(node))
    line = node.start_mark.line + 1
    if known == 0:
        raise YamlProblem("an anchor contains itself", "write the value out", line=line, document=index)
    if known is not None:
        return known
    sizes[id(node)] = 0
    total = 1
    if isinstance(node, yaml.SequenceNode):
        total += sum(_measure(item, sizes, index) for item in node.value)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise YamlProblem("a key is plain text", "write key: value", line=line, document=index)
            if key.value in seen:
                at = key.start_mark.line + 1
                raise YamlProblem(f"the key {key.value} is given twice", "delete one of them", line=at, document=index)
            seen.add(key.value)
            total += 1 + _measure(value, sizes, index)
    if total > MAX_NODES:
        raise YamlProblem(f"a document has at most {MAX_NODES} values", "split it", line=line, document=index)
    sizes[id(node)] = total
    return total
