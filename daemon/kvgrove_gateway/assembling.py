"""Everything that turns requests into prompts, put together: threads, template workers, tokenizers, caches, linter.

One object for the gateway to build, to tell of plans, to clear for erasures and to close. Of how a prompt is made it
knows nothing.
"""

import os
import time
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry

from kvgrove_gateway.assembly_metrics import AssemblyMetrics
from kvgrove_gateway.linting import TrafficLinter
from kvgrove_gateway.namespaces import Directory
from kvgrove_gateway.prepare import Preparation, timeless_realm
from kvgrove_gateway.router.keys import KnownChains
from kvgrove_gateway.settings import Limits
from kvgrove_gateway.tokenizers import AssemblyThreads, TokenizerStore
from kvgrove_link.body_store import BodyStore
from kvgrove_prompt.assembly_cache import AssemblyCache, NamespaceState
from kvgrove_prompt.render_pool import RenderPool


class Assembling:
    """On the event loop; `clear` and `follow` take effect before they return."""

    def __init__(
        self,
        limits: Limits,
        *,
        bodies: BodyStore,
        bundles: Callable[[bytes], Awaitable[bytes]],
        registry: CollectorRegistry,
        throwaway: Callable[[], bytes],
        cacheable_minimum: Callable[[str], int],
    ) -> None:
        """``bundles``: fetches a tokenizer bundle by digest. ``throwaway``: fresh random bytes. ``cacheable_minimum``:
        as `Preparation` takes it."""
        self._metrics = AssemblyMetrics(registry)
        self._workers = RenderPool(
            limits.assembly_threads, seconds=limits.template_s, on_kill=self._metrics.template_kills.inc
        )
        self._known = KnownChains(limits.known_segments)
        self._cache = AssemblyCache(limits.assembly_cache_bytes, watcher=self._metrics)
        self._linter = TrafficLinter(os.urandom(32), found=self._metrics.found, clock=time.monotonic)
        self.threads = AssemblyThreads(limits.assembly_threads, limits.assemblies)
        self.tokenizers = TokenizerStore(
            bundles,
            self.threads,
            keep=limits.tokenizers,
            timeout_s=limits.bundle_fetch_s,
            renderer=self._workers,
            watcher=self._metrics,
        )
        self.preparation = Preparation(
            bodies,
            self.tokenizers,
            self.threads,
            self._known,
            throwaway=throwaway,
            cache=self._cache,
            cacheable_minimum=cacheable_minimum,
            linter=self._linter,
        )
        self._metrics.size.set_function(lambda: self._cache.size)

    def follow(self, directory: Directory) -> None:
        """Forget what is old under a new plan."""
        self._metrics.name({namespace.uid: namespace.name for namespace in directory.namespaces})
        self._cache.follow(
            {
                namespace.uid: NamespaceState(
                    version=timeless_realm(namespace).shared_realm(),
                    documents=frozenset(document.reference.label for document in namespace.documents),
                )
                for namespace in directory.namespaces
            }
        )

        self._linter.keep(namespace.uid for namespace in directory.namespaces)

    def forget(self, namespaces: set[str]) -> None:
        """Drop the series of namespaces (names) that are gone."""
        self._metrics.forget(namespaces)

    def clear(self) -> int:
        """Forget everything, what is under way now included; answers how many entries there were."""
        return self._known.clear() + self._cache.clear() + self._linter.clear()

    def close(self) -> None:
        self.threads.close()
        self._workers.close()
