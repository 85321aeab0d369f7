"""What all resource models share: camelCase in YAML, snake_case in Python, closed, frozen, rules on the class.

A spec refuses unknown fields: a typo must not silently mean "default". A status ignores them: it may have been written
by a newer operator, and an older one must be able to take over.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from kvgrove_crds.cel import Rule, Transition, append_rules, refuse

GROUP = "kvgrove.dev"
VERSION = "v1alpha1"
API_VERSION: Final = "kvgrove.dev/v1alpha1"
DEFAULT_NAMESPACE = "default"


class Spec(BaseModel):
    """Base of everything that people write. Compares by value; ``model_dump(by_alias=True)`` gives the YAML back."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    transitions: ClassVar[tuple[Transition, ...]] = ()

    @model_validator(mode="after")
    def _hold_rules(self) -> Self:
        violations = [violation for rule in self.rules for violation in rule.violations(self)]
        if violations:
            raise refuse(violations)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        node = handler.resolve_ref_schema(handler(schema))
        return append_rules(node, (*cls.rules, *cls.transitions))


class Status(Spec):
    """Base of everything that the operator writes."""

    model_config = ConfigDict(extra="ignore")


class ObjectMeta(Spec):
    """Standard object metadata, checked by the API server itself; here only so that typos in a file are found."""

    name: str = ""
    namespace: str | None = None
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    generate_name: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[Mapping[str, Any], ...] = ()
    managed_fields: tuple[Mapping[str, Any], ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    self_link: str | None = None


_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


def _bad_names(value: Any) -> Iterator[str]:
    if re.fullmatch(_LABEL, value.metadata.name, re.ASCII) is None:
        yield ".metadata.name"
    if value.metadata.namespace is not None and re.fullmatch(_LABEL, value.metadata.namespace, re.ASCII) is None:
        yield ".metadata.namespace"


class Resource(Spec):
    """Base of the three kinds. Names fit in a label, so that workloads and metrics can carry them."""

    rules = (
        Rule(
            cel=f"self.metadata.name.matches('^{_LABEL}$')",
            says="a name has 1 to 63 lower-case letters, digits and inner dashes",
            cure="rename the object, like support-bot, so that it fits in labels",
            broken=_bad_names,
        ),
    )

    metadata: ObjectMeta = ObjectMeta()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The Kubernetes namespace; a file that names none means ``default``, as kubectl does."""
        return self.metadata.namespace or DEFAULT_NAMESPACE
