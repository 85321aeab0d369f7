"""The API server, as far as the operator talks to it: a few verbs over paths, on threads of their own.

Everything that the operator owns is written by server-side apply under one field manager, so that fields of others
stay theirs; a status in one write of its subresource; durable state by whole replacement against a resourceVersion, so
that a leader that has been replaced cannot overwrite its successor. Errors say whether the same call may succeed later.
No body is ever quoted in an error: it may hold a secret.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
import urllib3
from kubernetes.client import ApiClient

from kvgrove_protocol.errors import Retryable, Terminal

Object = dict[str, Any]

FIELD_MANAGER: Final = "kvgrove-operator"
PAGE: Final = 500
CALLS_AT_ONCE: Final = 16
CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"


class Unavailable(Retryable):
    """The API server does not answer, or is overloaded."""

    code = "api_server_unavailable"


class Conflict(Retryable):
    """Somebody else has written the object since it was read: read it anew."""

    code = "conflict"


class Forbidden(Terminal):
    """The operator's role lacks a right; the message of the API server names it."""

    code = "forbidden"


class Rejected(Terminal):
    """The API server does not accept the call, and will not accept it again."""

    code = "rejected"


class NotFound(Terminal):
    """There is no such object."""

    code = "not_found"


class Kube:
    """All calls may raise `Unavailable`, `Forbidden` or `Rejected`. A path starts with ``/api`` and has no host."""

    def __init__(self, api: ApiClient) -> None:
        self._configuration = api.configuration
        self._pool = api.rest_client.pool_manager
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="kube")
        self.writes = 0
        """Calls that change something; only rises."""

    def close(self) -> None:
        """Waits for what is under way."""
        self._threads.shutdown(cancel_futures=True)

    async def list(self, path: str, *, labels: str = "") -> list[Object]:
        """All objects of a collection, as of one moment that is not before this call."""
        items: list[Object] = []
        token = ""
        while True:
            query = {"limit": str(PAGE)} | ({"labelSelector": labels} if labels else {})
            page = await self._call("GET", path, query=query | ({"continue": token} if token else {}))
            items += map(_without_notes, page["items"])
            token = page["metadata"].get("continue", "")
            if not token:
                return items

    async def get(self, path: str) -> Object | None:
        """The object; None where there is none."""
        try:
            return _without_notes(await self._call("GET", path))
        except NotFound:
            return None

    async def create(self, path: str, body: Object) -> Object:
        """Raises `Conflict` where one of that name exists."""
        return await self._call("POST", path, body=body)

    async def replace(self, path: str, body: Object) -> Object:
        """Raises `Conflict` unless ``metadata.resourceVersion`` of ``body`` is the newest, or the object is gone."""
        try:
            return await self._call("PUT", path, body=body)
        except NotFound:
            raise Conflict(f"{path} is gone") from None

    async def apply(self, path: str, body: Object) -> Object:
        """Make the fields of ``body`` ours and as they are there; raises `NotFound` for a status of nothing."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._call("PATCH", path, query=query, body=body, content=_APPLY)

    async def set_finalizers(self, path: str, held: Object, finalizers: Sequence[str]) -> Object | None:
        """Replace the finalizers of ``held``, as it was read. None: it is gone. Raises `Conflict` if it is newer."""
        metadata = {"resourceVersion": held["metadata"]["resourceVersion"], "finalizers": [*finalizers]}
        try:
            return await self._call("PATCH", path, body={"metadata": metadata}, content=_MERGE)
        except NotFound:
            return None

    async def delete(self, path: str, *, uid: str, version: str = "") -> None:
        """Delete the object of that UID (and resourceVersion); one that is gone, or is another, is left alone."""
        preconditions = {"uid": uid} | ({"resourceVersion": version} if version else {})
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        try:
            await self._call("DELETE", path, query={"propagationPolicy": "Background"}, body=body)
        except (NotFound, Conflict):
            return

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = "application/json",
    ) -> Object:
        self.writes += method != "GET"
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._do, method, path, query or {}, body, content)

    def _do(self, method: str, path: str, query: Mapping[str, str], body: Object | None, content: str) -> Object:
        headers = {"Accept": "application/json", "Content-Type": content}
        token = self._configuration.auth_settings().get("BearerToken")  # asked each time: tokens are renewed on the way
        if token is not None:
            headers[token["key"]] = token["value"]
        url = self._configuration.host + path + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._pool.request(
                method,
                url,
                body=json.dumps(body).encode() if body is not None else None,
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(f"{method} {path}: {type(error).__name__}") from None
        if response.status < 300:
            return msgspec.json.decode(response.data, type=Object)
        raise _problem(method, path, response.status, response.data)


def _without_notes(item: Object) -> Object:
    """Without what servers note down of who wrote which field: a good part of an object, and nobody reads it here."""
    item.get("metadata", {}).pop("managedFields", None)
    return item


def _problem(method: str, path: str, status: int, answer: bytes) -> Retryable | Terminal:
    try:
        said = str(json.loads(answer).get("message", ""))
    except (ValueError, AttributeError):
        said = ""
    text = f"{method} {path}: {status} {said[:512]}".rstrip()
    match status:
        case 404:
            return NotFound(text)
        case 409:
            return Conflict(text)
        case 403:
            return Forbidden(text)
        case 401 | 408 | 429:
            return Unavailable(text)
        case _ if status >= 500:
            return Unavailable(text)
        case _:
            return Rejected(text)
