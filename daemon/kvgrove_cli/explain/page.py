"""An explanation as one HTML page that needs nothing else: no script, and no style, font or picture from elsewhere.

The prompt's text is somebody's words: all of it goes through `escape`, and a Content-Security-Policy that allows this
page's own style and nothing else stands behind that, so markup in a prompt stays text.
"""

from html import escape
from typing import Final

from kvgrove_cli.explain.wording import changes_of, fate, told
from kvgrove_gateway.explain.report import Piece, PromptView, Report

_STYLE: Final = """\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b1b1b;
       background: #fff; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid #ccc; border-radius: 4px; padding: .75rem;
      line-height: 1.7; }
pre span { border-radius: 2px; unicode-bidi: isolate; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .15rem .8rem .15rem 0; }
.reused { background: #d3f0d3; } .new { background: #ffe3c4; } .partial_block { background: #ececec; }
.evicted, .expired { background: #ffd0d0; } .other { background: #e3d7ff; }
.unknown { background: transparent; } .template { color: #666; } .declared { font-style: italic; }
.here { outline: 2px solid #b00020; }
"""
_COLOURED: Final = frozenset({"new", "partial_block", "evicted", "expired"})


def page(report: Report) -> str:
    """The whole document."""
    names = ("First prompt", "Second prompt")
    parting = report.parting
    sides = (None, None) if parting is None else (parting.a, parting.b)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="referrer" content="no-referrer">',
        "<title>kvgrove explain</title>",
        f"<style>{_STYLE}</style></head><body>",
        "<h1>What is reused, and why the rest is not</h1>",
        *(f"<p>{escape(line)}</p>" for line in told(report)),
    ]
    if lines := changes_of(report):
        parts += ["<h2>What differs between the requests</h2>", "<ul>"]
        parts += [*(f"<li>{escape(line)}</li>" for line in lines), "</ul>"]
    for name, view, side in zip(names, report.prompts, sides, strict=False):
        parts += [f"<h2>{name}</h2>", *_prompt(view, None if side is None else side.token)]
    return "\n".join([*parts, "</body></html>", ""])


def _prompt(view: PromptView, differs_at: int | None) -> list[str]:
    rows = [("model", view.model), ("tokens", str(view.tokens)), ("reused", str(view.reused_tokens))]
    rows += [(reason, str(count)) for reason, count in sorted(view.missed.items())]
    rows += [("node", view.node)] if view.node else []
    lines = [
        "<table>",
        *(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows),
        "</table>",
    ]
    text = "".join(_piece(piece, differs_at) for piece in view.pieces)
    lines.append(f"<pre>{text}</pre>")
    if len(view.nodes) > 1:
        lines += ["<table><tr><th>node</th><th>reused</th><th>missed</th></tr>"]
        for node in view.nodes:
            cells = (node.node, _counts(node.reused), node.problem or _counts(node.missed))
            lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
        lines.append("</table>")
    return lines


def _piece(piece: Piece, differs_at: int | None) -> str:
    classes = [_colour(piece)]
    if piece.origin == "template":
        classes.append("template")
    if differs_at is not None and piece.start <= differs_at < piece.end:
        classes.append("here")
    text = piece.text
    if text is None:
        classes.append("declared")
        text = f"[{piece.origin}, {piece.end - piece.start} tokens]"
    title = f"{piece.origin}, tokens {piece.start} to {piece.end}: {fate(piece)}"
    return f'<span class="{" ".join(classes)}" title="{escape(title, quote=True)}">{escape(text)}</span>'


def _colour(piece: Piece) -> str:
    if piece.reason is None:
        return "reused" if piece.tier else "unknown"
    return piece.reason if piece.reason in _COLOURED else "other"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "0"
