"""Bounded texts with a shape: names, digests, paths. One place for every pattern, checked by Python and by CEL.

CEL rules instead of the schema's ``pattern``, because a pattern's error shows the expression and not the cure.
Patterns hold no backslash and no quote, so that they mean the same to Python, to RE2 and inside a CEL literal.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from kvgrove_crds.cel import Rule, append_rules, refuse, when


@dataclass(frozen=True)
class Shape:
    """A text of at most ``max_length`` characters that matches ``pattern`` as a whole and not ``never``."""

    pattern: str
    max_length: int
    says: str
    cure: str
    never: str | None = None

    @property
    def rule(self) -> Rule:
        wanted, unwanted = re.compile(self.pattern, re.ASCII), re.compile(self.never) if self.never else None
        cel = f"self.matches('^{self.pattern}$')" + (f" && !self.matches('{self.never}')" if self.never else "")
        return Rule(
            cel=cel,
            says=f"{self.says} (at most {self.max_length} characters)",
            cure=self.cure,
            broken=lambda text: when(
                len(text) > self.max_length
                or wanted.fullmatch(text) is None
                or (unwanted is not None and unwanted.search(text) is not None)
            ),
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        rule = self.rule

        def check(text: str) -> str:
            if violations := rule.violations(text):
                raise refuse(violations)
            return text

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return append_rules({**handler(schema), "maxLength": self.max_length}, [self.rule])


_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"

DnsLabel = Annotated[
    str,
    Shape(_LABEL, 63, "a name has lower-case letters, digits and inner dashes", "rename it, like support-bot"),
]
DnsName = Annotated[
    str,
    Shape(
        f"{_LABEL}([.]{_LABEL}){{0,9}}",
        253,
        "a Kubernetes name has lower-case letters, digits, dashes and dots",
        "use the name that kubectl get shows",
    ),
]
DataKey = Annotated[
    str, Shape("[-._a-zA-Z0-9]+", 253, "a key has letters, digits and -._", "use a key that the object has")
]
Version = Annotated[
    str,
    Shape(
        "[A-Za-z0-9]([-A-Za-z0-9._+]*[A-Za-z0-9])?",
        64,
        "a version has letters, digits and inner -._+",
        'write it like "2026-11-29" or "v2", in quotes',
    ),
]
Digest = Annotated[
    str,
    Shape(
        "sha256:[0-9a-f]{64}",
        71,
        "a digest is sha256: and 64 hex digits",
        "copy it from a ModelVersion's status.digests",
    ),
]
Commit = Annotated[
    str,
    Shape(
        "[0-9a-f]{40}",
        40,
        "a revision is a full commit of 40 hex digits: branches and tags move, short commits become ambiguous",
        "copy the commit from the repository's history page",
    ),
]
Repository = Annotated[
    str,
    Shape(
        "([A-Za-z0-9][-A-Za-z0-9._]*/)?[A-Za-z0-9][-A-Za-z0-9._]*",
        193,
        "a repository is OWNER/NAME",
        "write it like HuggingFaceTB/SmolLM2-135M-Instruct, without a host and without @revision",
    ),
]
AbsolutePath = Annotated[
    str,
    Shape(
        "/.*", 1024, "a path is absolute and has no .. part", "write it like /models/smollm2", never="(^|/)[.][.](/|$)"
    ),
]
RelativePath = Annotated[
    str,
    Shape(
        "([^/].*)?",
        1024,
        "a path inside the volume is relative and has no .. part",
        "write it like models/smollm2; leave it out for the volume's root",
        never="(^|/)[.][.](/|$)",
    ),
]
Alias = Annotated[
    str,
    Shape(
        "[A-Za-z0-9][-A-Za-z0-9._:/]*",
        128,
        "an alias has letters, digits and -._:/ and cannot be read as NAMESPACE/NAME, another namespace's own name",
        "write it like gpt-4o or Qwen/Qwen3-8B",
        never=f"^{_LABEL}/[a-z0-9]([-.a-z0-9]*[a-z0-9])?$",
    ),
]
Principal = Annotated[
    str,
    Shape(
        "[A-Za-z0-9][-A-Za-z0-9._:@/]*",
        128,
        "a tenant or scope has letters, digits and -._:@/",
        "write it as the credentials spell it",
    ),
]
GenerationPrefix = Annotated[
    str,
    Shape("[0-9a-f]{12,64}", 64, "a generation is 12 to 64 hex digits", "copy it from status.desiredGeneration"),
]
FullGeneration = Annotated[
    str, Shape("[0-9a-f]{64}", 64, "a generation is 64 hex digits", "copy it from a ModelVersion's status.generation")
]
