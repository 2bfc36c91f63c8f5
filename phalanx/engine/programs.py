"""Compiled programs in JAX's cache: every worker keeps its own where JAX would keep only the chief's."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
from jax._src import compilation_cache, compiler, distributed  # what writes the cache has no public twin


def keep_on_every_worker() -> None:
    """Let workers on CPU write what they compile into JAX's cache, if the user or the launcher has named one.

    JAX writes worker 0's programs alone. On accelerators the others read those; on CPU a program's key names
    its devices, so that every worker but the chief would compile again after each restart.
    """
    written_by_jax = getattr(compiler, "_cache_write", None)
    if not jax.config.jax_compilation_cache_dir or written_by_jax is None:
        return

    def write(
        key: str, seconds: float, name: str, backend: Any, executable: Any, callbacks: Sequence[Any]
    ) -> None:
        if backend.platform != "cpu" or callbacks or distributed.global_state.process_id == 0:
            written_by_jax(key, seconds, name, backend, executable, callbacks)
        elif seconds >= jax.config.jax_persistent_cache_min_compile_time_secs:
            with contextlib.suppress(Exception):  # a cache that cannot be written costs time only
                compilation_cache.put_executable_and_time(key, name, executable, backend, int(seconds))

    compiler._cache_write = write
