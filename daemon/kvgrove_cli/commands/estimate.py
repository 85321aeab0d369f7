"""`kvgrove estimate`."""

from pathlib import Path

import click
import msgspec

from kvgrove_cli.errors import UsageProblem
from kvgrove_cli.estimate.report import as_text
from kvgrove_cli.estimate.report import estimate as estimated
from kvgrove_crds.quantities import Quantity
from kvgrove_daemon.cache.layout import as_dtype
from kvgrove_daemon.cache.tiers.codec import as_codec


@click.command()
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="bfloat16",
    show_default=True,
    help="Of the KV: `spec.kvFormat.dtype`. On a CPU, `auto` means float32.",
)
@click.option("--block-size", type=click.IntRange(1), default=32, show_default=True, help="Tokens per block.")
@click.option("--tokens", type=click.IntRange(1), default=4096, show_default=True, help="Length of a prompt.")
@click.option("--tier", "tiers", multiple=True, metavar="TIER=SIZE", help="As `spec.pool`: host=4Gi; repeatable.")
@click.option(
    "--codec",
    type=click.Choice(["none", "int8", "fp8-e4m3", "int4"]),
    default="none",
    show_default=True,
    help="Of the disk tier.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def estimate(
    *, model: Path, dtype: str, block_size: int, tokens: int, tiers: tuple[str, ...], codec: str, output: str
) -> None:
    """Show what prompts of MODEL take in the cache, and how many fit.

    MODEL is a config.json or a directory that holds one; no weights are read. A model whose state is not a K and a V
    per token (MLA, SSM, hybrids) is refused with the reason.
    """
    from kvgrove_cli.estimate.configs import read_shape  # noqa: PLC0415 - loads transformers, which takes seconds

    found = estimated(
        read_shape(model),
        dtype=as_dtype(dtype),
        block_size=block_size,
        prompt_tokens=tokens,
        tiers=_sizes(tiers),
        codec=as_codec(codec),
    )
    click.echo(msgspec.json.format(msgspec.json.encode(found)).decode() if output == "json" else as_text(found))


def _sizes(tiers: tuple[str, ...]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for given in tiers:
        tier, separator, size = given.partition("=")
        if not separator or tier not in ("device", "host", "disk") or tier in sizes:
            raise UsageProblem(f"--tier {given}: write device=SIZE, host=SIZE or disk=SIZE, each once", field="tier")
        try:
            sizes[tier] = Quantity(size).bytes
        except ValueError as error:
            raise UsageProblem(f"--tier {given}: {error}", field="tier") from None
    return sizes
