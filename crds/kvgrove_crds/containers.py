"""Bounded lists and maps: what Kubernetes calls list-type and list-map-keys, enforced in Python as well.

Every list has a bound (memory of the API server, cost of CEL). Lists of named things are maps by name, so that two
field managers can own different entries and a reorder is no change; lists of plain values are sets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_snake
from pydantic_core import CoreSchema, core_schema

from kvgrove_crds.cel import Violation, refuse


@dataclass(frozen=True)
class Bounded:
    """An ordered list of at most ``max_items``, replaced as a whole by whoever writes it."""

    max_items: int
    min_items: int = 0

    def duplicates(self, items: Sequence[Any]) -> list[Violation]:  # noqa: ARG002 (an ordered list may repeat itself)
        return []

    def keywords(self) -> dict[str, Any]:
        return {"x-kubernetes-list-type": "atomic"}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(items: Sequence[Any]) -> Sequence[Any]:
            violations = self.duplicates(items)
            if not self.min_items <= len(items) <= self.max_items:
                says = f"{self.min_items} to {self.max_items} items are allowed, not {len(items)}"
                violations.append(Violation("", says, "shorten the list" if items else "add an item"))
            if violations:
                raise refuse(violations)
            return items

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        bounds = {"minItems": self.min_items} if self.min_items else {}
        return {**handler(schema), **bounds, "maxItems": self.max_items, **self.keywords()}


@dataclass(frozen=True)
class ListSet(Bounded):
    """A list of plain values, each at most once."""

    def duplicates(self, items: Sequence[Any]) -> list[Violation]:
        return [
            Violation(f"[{i}]", f"the values of this list are unique, {item!r} is given twice", "delete one of them")
            for i, item in enumerate(items)
            if item in items[:i]
        ]

    def keywords(self) -> dict[str, Any]:
        return {"x-kubernetes-list-type": "set"}


@dataclass(frozen=True)
class ListMap(Bounded):
    """A list of objects, each known by its ``key`` (in YAML spelling)."""

    key: str = "name"

    def duplicates(self, items: Sequence[Any]) -> list[Violation]:
        attribute, seen = to_snake(self.key), set()
        violations: list[Violation] = []
        for i, item in enumerate(items):
            key = getattr(item, attribute)
            if key in seen:
                says = f"{self.key} is unique in this list, {key!r} is given twice"
                violations.append(Violation(f"[{i}].{self.key}", says, "rename one"))
            seen.add(key)
        return violations

    def keywords(self) -> dict[str, Any]:
        return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}


@dataclass(frozen=True)
class OwnedListMap(ListMap):
    """The same of a list that has one writer, to the API server a value as a whole.

    Who owns which entry is recorded for each entry of a map, in more bytes than the entry has.
    """

    def keywords(self) -> dict[str, Any]:
        return {"x-kubernetes-list-type": "atomic"}


@dataclass(frozen=True)
class BoundedMap:
    """A map of at most ``max_items`` entries."""

    max_items: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(entries: dict[str, Any]) -> dict[str, Any]:
            if len(entries) > self.max_items:
                says = f"at most {self.max_items} entries are allowed, not {len(entries)}"
                raise refuse([Violation("", says, "delete some")])
            return entries

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "maxProperties": self.max_items}
