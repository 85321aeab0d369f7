"""`kvgrove explain`."""

from pathlib import Path
from typing import Any

import click
import msgspec

from kvgrove_cli.commands import options
from kvgrove_cli.errors import FleetProblem, UsageProblem
from kvgrove_cli.explain.offline import explain as explain_offline
from kvgrove_cli.explain.page import page
from kvgrove_cli.explain.wording import as_text
from kvgrove_cli.state_dir import StateDir
from kvgrove_cli.status import read as read_status
from kvgrove_cli.web import post_json
from kvgrove_gateway.explain.report import Report, decode
from kvgrove_gateway.explain.routes import CALLERS_PATH, OPERATORS_PATH
from kvgrove_protocol.chain import DEFAULT_BLOCK_SIZE
from kvgrove_protocol.control import GATEWAY

MAX_FILE_BYTES = 16 << 20


@click.command()
@click.argument("first", metavar="A.json", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("second", metavar="[B.json]", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--url", help="Base address of a gateway; default: one of the fleet in --state-dir.")
@options.api_key
@options.state_dir
@click.option("--admin", is_flag=True, help="As an operator: all nodes, and why the router chooses (/admin/explain).")
@click.option(
    "--model",
    type=click.Path(file_okay=False, path_type=Path),
    help="Ask no fleet: take the tokenizer and the chat template from this model directory.",
)
@click.option("--block-size", default=DEFAULT_BLOCK_SIZE, show_default=True, help="With --model: tokens per block.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "html"]), default="text", show_default=True)
def explain(
    *,
    first: Path,
    second: Path | None,
    url: str | None,
    key: str | None,
    state_dir: Path,
    admin: bool,
    model: Path | None,
    block_size: int,
    output: str,
) -> None:
    """Show what of request A is reused and why the rest is not, and where request B parts from it.

    A.json and B.json are request bodies for /v1/chat/completions, /v1/completions or /v1/messages. With -o html: one
    page that needs nothing else, the prompts coloured by what happens to them. What is shown holds the prompts' texts.
    """
    files = [first] if second is None else [first, second]
    bodies = [(str(file), _body(file)) for file in files]
    if model is not None:
        if block_size < 1:
            raise UsageProblem(f"--block-size {block_size}: at least 1", field="block_size")
        report = explain_offline(bodies, model, block_size=block_size)
    else:
        base = _base(url, state_dir)
        asked = msgspec.json.encode({"requests": [body for _, body in bodies]})
        path = OPERATORS_PATH if admin else CALLERS_PATH
        report = _report(post_json(base + path, asked, key=options.key_for(key, state_dir)), base)
    match output:
        case "json":
            click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
        case "html":
            click.echo(page(report), nl=False)
        case _:
            click.echo(as_text(report))


def _body(file: Path) -> dict[str, Any]:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise UsageProblem(f"{file}: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise UsageProblem(f"{file}: larger than {MAX_FILE_BYTES} bytes")
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UsageProblem(f"{file}: not a JSON object; give the body of a request") from None


def _base(url: str | None, state_dir: Path) -> str:
    if url is not None:
        return url.rstrip("/").removesuffix("/v1")
    members = read_status(StateDir(state_dir).status_file).members
    for member in members:
        if member.role == GATEWAY and member.address:
            return member.address
    raise FleetProblem("no gateway of the fleet has an address; give one with --url")


def _report(body: bytes, base: str) -> Report:
    try:
        return decode(body)
    except msgspec.DecodeError as error:
        raise FleetProblem(f"{base}: answers something else than an explanation: {error}") from None
