"""Commands and queries in documents, judged by the programs that they are for, without running them."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import yaml

from kvgrove_cli.__main__ import kvgrove
from kvgrove_crds.crd import DEFINITIONS

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CORE = {
    "configmap", "customresourcedefinition", "deployment", "events", "lease", "networkpolicies", "node", "nodes", "pod",
    "pods", "secret", "service",
}  # fmt: skip
OURS = {name for each in DEFINITIONS for name in (each.plural, each.short_name, each.model.__name__.lower(), each.name)}
_NESTED = ("auth", "config", "create", "rollout", "top")
_TAKES_KINDS = ("get", "describe", "delete", "wait")


def blocks(text: str, language: str) -> list[str]:
    return [body for found, body in _BLOCK.findall(text) if found == language]


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command line in the shell blocks; comments are left out, continued lines joined."""
    for body in blocks(text, "sh"):
        for line in body.replace("\\\n", " ").splitlines():
            if line.strip():
                yield shlex.split(line, comments=True)


def problems_of_command(words: list[str], kubectl: Path, helm: Path) -> Iterator[str]:
    match words[0]:
        case "kubectl":
            yield from _of_kubectl(words[1:], kubectl)
        case "kvgrove":
            yield from _of_kvgrove(words[1:])
        case "helm":
            yield from _of_flags(words[1:], helm, verbs=1)
        case "podman":
            return  # an image builder of your choice; the file that it is given has tests of its own
        case other:
            yield f"{other} is no program of these documents"


def _of_kubectl(words: list[str], kubectl: Path) -> Iterator[str]:
    depth = 3 if words[:2] == ["create", "secret"] else 2 if words[0] in _NESTED else 1
    yield from _of_flags(words, kubectl, verbs=depth)
    if words[0] in _TAKES_KINDS and "--filename" not in words and "-f" not in words:
        kinds = next((word for word in words[1:] if not word.startswith("-")), "")
        for kind in kinds.partition("/")[0].split(","):
            if kind not in _CORE | OURS:
                yield f"{kind!r} is no kind that is known here"


def _of_flags(words: list[str], program: Path, verbs: int) -> Iterator[str]:
    said = _help(program, tuple(words[:verbs]))
    if said is None:
        yield f"{program.name} {' '.join(words[:verbs])}: no such command"
        return
    for word in words[verbs:]:
        flag = re.match(r"--?[a-z][-a-z]*", word)
        if flag is not None and not re.search(rf"(?<![-\w]){flag[0]}(?![-\w])", said):
            yield f"{program.name} {' '.join(words[:verbs])} has no {flag[0]}"


@cache
def _help(program: Path, verbs: tuple[str, ...]) -> str | None:
    done = subprocess.run([str(program), *verbs, "--help"], capture_output=True, text=True, check=False, timeout=30)
    options = subprocess.run([str(program), "options"], capture_output=True, text=True, check=False, timeout=30)
    # Both print the help of the parent for a verb that they do not know.
    known = done.returncode == 0 and re.search(rf"\b{program.name} {' '.join(verbs)}\b", done.stdout)
    return done.stdout + (options.stdout if options.returncode == 0 else "") if known else None


def _of_kvgrove(words: list[str]) -> Iterator[str]:
    command: click.Command = kvgrove
    context = click.Context(kvgrove, info_name="kvgrove")
    rest = list(words)
    try:
        while isinstance(command, click.Group):
            name, found, rest = command.resolve_command(context, rest)
            assert found is not None
            command, context = found, click.Context(found, parent=context, info_name=name)
        command.parse_args(click.Context(command, parent=context.parent, info_name=command.name), list(rest))
    except click.UsageError as error:
        yield f"kvgrove {' '.join(words)}: {error.format_message()}"


def unparsed(queries: list[str], promtool: Path, folder: Path) -> str:
    """What promtool says to queries that it cannot parse; empty: all are sound."""
    file = folder / "queries.yaml"
    rules = [{"record": f"query:{index}", "expr": query} for index, query in enumerate(queries)]
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run([str(promtool), "check", "rules", str(file)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
