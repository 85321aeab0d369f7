"""What is wrong with a manifest, said so that its author can mend it: file, place, rule, cure; one line each.

Turns pydantic's errors into that form. Values are not quoted, because texts may hold prompts (I12): only names
of fields, rules, and entries of name lists.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from kvgrove_crds.cel import RULE_ERROR
from kvgrove_protocol.errors import Terminal

Location = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One defect. ``document`` counts the YAML documents of a file from 1; 0 where the file as a whole is meant."""

    file: str
    document: int
    path: str
    rule: str
    cure: str
    line: int | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        document = f"document {self.document}: " if self.document else ""
        path = f"{self.path}: " if self.path else ""
        return f"{place}: {document}{path}{self.rule}; {self.cure}"


class ManifestError(Terminal):
    """Manifests that cannot be used, with every problem found. The text has one line for each."""

    code = "InvalidSpec"

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)), field=problems[0].path if problems else None)
        self.problems = tuple(problems)


def yaml_path(location: Location) -> str:
    """``("spec", "documents", 2, "version")`` as ``spec.documents[2].version``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def problems_of(error: ValidationError, model: type[BaseModel]) -> Iterator[tuple[Location, str, str, str]]:
    """Yields (location, path below it, rule, cure) for each error."""
    for item in error.errors(include_url=False, include_input=True):
        location: Location = item["loc"]
        context: Mapping[str, Any] = item.get("ctx", {})
        if item["type"] == RULE_ERROR:
            for violation in context["violations"]:
                yield location, violation.at, violation.rule, violation.cure
        elif item["type"] == "extra_forbidden":
            yield location, "", "unknown field", _suggest(str(location[-1]), known_fields(model, location[:-1]))
        else:
            yield location, "", *_explain(item["type"], context, item["input"], item["msg"])


def known_fields(model: type[BaseModel], location: Location) -> list[str]:
    """YAML names of the fields of the object at ``location``."""
    here: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int) or here is None:
            continue
        named = {field.alias or name: field.annotation for name, field in here.model_fields.items()}
        here = _model_in(named.get(part))
    return [field.alias or name for name, field in here.model_fields.items()] if here is not None else []


def closest(word: str, known: Sequence[str]) -> str | None:
    """The known word that was probably meant, judged without case, dashes and underscores."""
    plain = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.replace("_", "").replace("-", "").lower(), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside ``X | None``, ``tuple[X, ...]`` or ``Annotated``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)


def _suggest(word: str, known: Sequence[str]) -> str:
    meant = closest(word, known)
    if meant is not None:
        return f"did you mean {meant}?"
    return f"delete it (known here: {', '.join(known)})" if known else "delete it"


_KINDS = {
    "string_type": ("text is needed", "put the value in quotes"),
    "int_type": ("a whole number is needed", "write digits without quotes"),
    "int_from_float": ("a whole number is needed", "write digits without quotes"),
    "float_type": ("a number is needed", "write digits without quotes"),
    "bool_type": ("true or false is needed", "write true or false without quotes"),
    "tuple_type": ("a list is needed", "write one - item on each line"),
    "dict_type": ("an object is needed", "write key: value pairs below it"),
    "model_type": ("an object is needed", "write key: value pairs below it"),
    "model_attributes_type": ("an object is needed", "write key: value pairs below it"),
    "missing": ("a required field is missing", "add it"),
    "finite_number": ("a finite number is needed", "write digits without quotes"),
}


def _explain(kind: str, context: Mapping[str, Any], value: Any, message: str) -> tuple[str, str]:
    if kind in _KINDS:
        return _KINDS[kind]
    match kind:
        case "literal_error" | "enum":
            allowed = [word.strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(", ")]
            meant = closest(value, allowed) if isinstance(value, str) else None
            return f"one of {', '.join(allowed)} is needed", f"did you mean {meant}?" if meant else "write one of them"
        case "greater_than_equal":
            return f"at least {context['ge']} is needed", "raise it"
        case "greater_than":
            return f"more than {context['gt']} is needed", "raise it"
        case "less_than_equal":
            return f"at most {context['le']} is allowed", "lower it"
        case "string_too_long":
            return f"at most {context['max_length']} characters are allowed", "shorten it"
        case "string_too_short":
            return "an empty text is not allowed", "write something, or delete the field"
        case _:
            return message, "correct the value"
