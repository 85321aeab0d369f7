"""From what the user named to a directory with a model in it."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from kvgrove_cli import smollm2
from kvgrove_cli.errors import FleetProblem, UsageProblem

_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


def locate(chosen: str | None, progress: smollm2.Progress) -> Path:
    """A local directory; a Hugging Face id is downloaded unless its files are cached. Default: SmolLM2.

    Raises UsageProblem for a name that is neither, FleetProblem where a download fails.
    """
    if chosen is None:
        return smollm2.prepare(smollm2.default_cache(), progress)
    path = Path(chosen)
    if path.is_dir():
        return path.resolve()
    try:
        return Path(snapshot_download(chosen, local_files_only=True, allow_patterns=_FILES))
    except HFValidationError:
        raise UsageProblem(f"--model: {chosen} is neither a directory nor a Hugging Face id", field="model") from None
    except LocalEntryNotFoundError:
        progress(f"downloading {chosen}", 0.0)
    try:
        found = Path(snapshot_download(chosen, allow_patterns=_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).splitlines()[0]
        raise FleetProblem(f"--model: {chosen} could not be downloaded: {first}; pass a local directory") from None
    progress("model ready", 1.0)
    return found
