"""An explanation in words, for the terminal and the page. Pure."""

from kvgrove_cli.status import columns
from kvgrove_gateway.explain.report import Change, Piece, PromptView, Report, Side


def as_text(report: Report) -> str:
    """For the terminal: what happens to each prompt, where they part, what differs."""
    sections = ["\n".join(told(report))]
    if lines := changes_of(report):
        sections.append("\n".join(["what differs between the requests:", *(f"  {line}" for line in lines)]))
    for number, view in enumerate(report.prompts, 1):
        sections.append(f"prompt {number}: {view.tokens} tokens\n{_pieces(view)}")
        if len(view.nodes) > 1:
            sections.append(_nodes(view))
    return "\n\n".join(sections)


def told(report: Report) -> list[str]:
    """One line for each thing that matters."""
    lines = [_of_prompt(number, view) for number, view in enumerate(report.prompts, 1)]
    if len(report.prompts) > 1:
        lines.append("The prompts are the same." if report.parting is None else report.parting.summary)
    if report.parting is not None:
        for name, side in (("first", report.parting.a), ("second", report.parting.b)):
            lines.append(_side(name, side))
    for number, view in enumerate(report.prompts, 1):
        if (route := view.route) is not None:
            lines.append(
                f"Prompt {number} would go to {route.node} ({route.why}): {route.matched_tokens} tokens are there, "
                f"{route.expected_s:.3f} s until it is computed."
            )
    if report.assumed:
        lines.append("No fleet was asked: the second prompt is shown as right after the first one had been served.")
    return lines


def changes_of(report: Report) -> list[str]:
    return [_change(each) for each in report.changes]


def fate(piece: Piece) -> str:
    if piece.reason is not None:
        return f"computed ({piece.reason})"
    return f"reused ({piece.tier})" if piece.tier else "not known"


def _of_prompt(number: int, view: PromptView) -> str:
    name = f"Prompt {number} ({view.model})"
    if not view.missed and not view.reused_tokens:
        return f"{name}: {view.tokens} tokens."
    missed = ", ".join(f"{count} {reason}" for reason, count in sorted(view.missed.items()))
    return f"{name}: {view.tokens} tokens, {view.reused_tokens} reused, computed: {missed or 'none'}."


def _side(name: str, side: Side | None) -> str:
    if side is None:
        return f"The {name} has ended there."
    if side.text is None:
        return f"The {name} has {side.origin} there (a declared text)."
    return f"The {name} has {side.text!r} there, in {side.origin}, after {(side.before or '')!r}."


def _change(change: Change) -> str:
    match change.kind:
        case "moved":
            return f"{change.what} moved from {change.a} to {change.b}"
        case "appeared":
            return f"{change.what} appeared: {change.b}"
        case "gone":
            return f"{change.what} is gone: {change.a}"
    return f"{change.what} changed: {change.a}" + ("" if change.a == change.b else f", now {change.b}")


def _pieces(view: PromptView) -> str:
    rows = [(f"{each.start}-{each.end}", each.origin, fate(each)) for each in view.pieces]
    return columns(("TOKENS", "ORIGIN", "FATE"), rows)


def _nodes(view: PromptView) -> str:
    rows = [
        (
            each.node,
            ", ".join(f"{tier} {count}" for tier, count in each.reused.items()),
            each.problem or ", ".join(f"{reason} {count}" for reason, count in each.missed.items()),
        )
        for each in view.nodes
    ]
    return columns(("NODE", "REUSED", "MISSED"), rows)
