"""The events of a solution: when, which, and the state on both sides."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..base.foreign_names import LOG, missing
from ..base.host_programs import rarely
from ..base.leaves import check_precision
from ..base.tracing import is_tracer
from ..base.types import Array, Scalar, Tree, Units, Whole
from ..base.unreached_values import hide
from ..system.hybrid import Instant
from .description import describe_events

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


class EventLog(eqx.Module):
    """The events of a solve in order: when, which, and the instants just before and after.

    Outside `jit` there are exactly `count` entries; inside, entries beyond `count` are NaN (and
    -1 in `which`), so that a loss that reads them is NaN too.
    """

    t: Array
    which: Array
    member: Array
    before: Instant
    after: Instant
    count: Whole
    names: tuple[str, ...] = eqx.field(static=True)
    families: tuple[bool, ...] = eqx.field(static=True)  # which of the names are families of events
    modes: tuple[str, ...] = eqx.field(static=True, default=())
    units: Units = eqx.field(static=True, default=None)
    depends: Scalar | None = None  # carries derivatives by everything the solve depends on

    def of(self, name: str) -> EventLog:
        """Only the events called `name`."""
        check_precision()
        if name not in self.names:
            raise KeyError(f'no event is called "{name}"; the events are {list(self.names)}.')
        wanted = self.which == self.names.index(name)
        if is_tracer(wanted):
            size = self.which.shape[0]
        else:
            size = int(np.max(np.sum(np.asarray(wanted), axis=-1), initial=0))
        return _only(self, wanted, size)

    def nth(self, k: int) -> EventLog:
        """Event number `k`, counted from 0; NaN if there were fewer events.

        If you index the arrays instead (`log.t[k]`), JAX clamps `k` to the last entry.
        """
        check_precision()
        missing = k >= self.count

        def one(v: Array) -> Array:
            padded = jnp.concatenate([v, jnp.full((1, *v.shape[1:]), -1, v.dtype)])
            return padded[jnp.where(missing, v.shape[0], k)]

        found = (self.t, self.which, self.member, self.before, self.after)
        t, which, member, before, after = hide(~missing, jax.tree.map(one, found), self.depends)
        count = jnp.where(missing, 0, 1)
        return dataclasses.replace(
            self, t=t, which=which, member=member, before=before, after=after, count=count
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing(self, "an event log", name, LOG)

    def __len__(self) -> int:
        return self.which.shape[-1]

    def __repr__(self) -> str:
        return describe_events(self)

    def to_pandas(self) -> pd.DataFrame:
        """A data frame with one line per event: time, name, member, states before and after."""
        from .frames import events_to_pandas

        return events_to_pandas(self)

    def to_xarray(self) -> xr.Dataset:
        """A dataset along `event`: time, name, member, states before and after."""
        from .frames import events_to_xarray

        return events_to_xarray(self)


@functools.partial(rarely, static_argnums=(1, 2))
def first_entries(entries: Tree, size: int, axis: int) -> Tree:
    """The first `size` entries of arrays along an axis."""
    return jax.tree.map(lambda v: jax.lax.slice_in_dim(v, 0, size, axis=axis), entries)


@functools.partial(rarely, static_argnums=(2,))
def _only(log: EventLog, wanted: Array, size: int) -> EventLog:
    if jnp.ndim(wanted) > 1:
        return jax.vmap(lambda g, m: _only(g, m, size))(log, wanted)
    count = jnp.sum(wanted)
    index = jnp.nonzero(wanted, size=size, fill_value=0)[0]
    valid = jnp.arange(size) < count

    def pick(v: Array) -> Array:
        return jnp.take(v, index, axis=0, mode="clip")

    found = jax.tree.map(pick, (log.t, log.before, log.after))
    t, before, after = hide(valid, found, log.depends)
    return EventLog(
        t, jnp.where(valid, pick(log.which), -1), jnp.where(valid, pick(log.member), -1), before,
        after, count, log.names, log.families, log.modes, log.units, log.depends,
    )  # fmt: skip
