"""The Jinja environment of chat templates: transformers' settings, without transformers (and torch).

Templates are other people's code: the environment is sandboxed and immutable, and what a template renders is bounded.
Time is not bounded here; `Sandbox.render` is a plain function of plain data, fit to run in a worker that can be killed.
Golden tests hold every setting to transformers' own output, byte for byte.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from kvgrove_prompt.errors import TemplateUnsupported

MAX_RENDERED_CHARS = 16 << 20
"""Far beyond any context window; reaching it ends the render."""

TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
)
"""What other people's template code can raise on data it did not expect."""


class TooMuchText(Exception):
    """A template rendered more than it may. Raised by `Sandbox.render` only."""


class Sandbox:
    """One compiled template. Renders do not influence each other."""

    def __init__(self, source: str, *, max_chars: int = MAX_RENDERED_CHARS) -> None:
        """Raises TemplateUnsupported, with the line, if ``source`` does not compile."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["dict"] = _Dict()
        environment.globals["namespace"] = _Namespace
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateSyntaxError, RecursionError) as error:
            line = getattr(error, "lineno", 0)
            raise TemplateUnsupported(
                f"the chat template does not compile (line {line}): {error}", field="chat_template"
            ) from None
        self._max_chars = max_chars

    def render(self, variables: dict[str, Any], now: datetime) -> str:
        """The template's text for ``variables``; raises one of TEMPLATE_ERRORS, or TooMuchText."""
        pieces: list[str] = []
        room = self._max_chars
        for piece in self._template.generate(strftime_now=_clock(now), **variables):
            room -= len(piece)
            if room < 0:
                raise TooMuchText
            pieces.append(piece)
        return "".join(pieces)


def _clock(now: datetime) -> Callable[[str], str]:
    def strftime_now(format: str) -> str:  # noqa: A002 - templates may pass it by name, as transformers calls it
        return now.strftime(format)

    return strftime_now


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Dict:
    """``dict`` as templates may use it: no attribute leads to the type and on to the interpreter."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """``namespace`` without underscore names."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be an attribute name
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError("chat templates cannot store underscore names in a namespace")


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's part for training; it renders its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja reads the class attribute

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: jinja2.runtime.Macro) -> str:
        return caller()
