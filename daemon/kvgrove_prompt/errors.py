"""What can be wrong with messages, templates and tokenizers. All but the last are Terminal."""

from kvgrove_protocol.errors import Retryable, Terminal


class InvalidMessages(Terminal):
    """The caller's messages cannot be rendered: a 400 that names the field."""

    code = "invalid_messages"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}", field=field)


class TemplateUnsupported(Terminal):
    """The chat template changes or hides contents so that they cannot be told apart from its own text.

    The message says where, never what the contents are.
    """

    code = "template_unsupported"


class TemplateTooSlow(TemplateUnsupported):
    """The chat template was ended at its bound. Of what it would have rendered nothing is known."""


class TokenizerUnsupported(Terminal):
    """The tokenizer's files are missing, damaged or of a kind that cannot be used safely."""

    code = "tokenizer_unsupported"


class RendererLost(Retryable):
    """The process that renders templates could not be had, or ended: nothing is known of the template itself."""

    code = "renderer_lost"
