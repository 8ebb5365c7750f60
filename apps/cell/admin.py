"""The cell's desired state and who may change it: publish, update, unpublish, ACLs.

A change takes effect and is answered only after it has been checked and written. Calls block (a write to Cloud Storage
takes up to a few tenths of a second) and are thread-safe.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from apps.cell import calls
from apps.cell.desired import acl
from apps.cell.desired.state import CellState, Published, PublishedAdapter
from apps.cell.desired.store import LEASE_S, RENEW_S, StateError, StateTaken, Store
from apps.cell.errors import AlreadyTaken, CellError, NotAllowed, NotPublished, Unavailable
from apps.cell.names import check_cell, check_length, model_name, split
from apps.cell.registry import Registry
from apps.serving.files import Lease
from ray_configs.cell import CellConfig

log = logging.getLogger("podslice")


class Admin:
    """Owns one cell's desired state. `principal` is the name of the caller's key; None where there are no keys."""

    def __init__(self, config: CellConfig, store: Store, lease: Lease):
        self._config, self._store, self._lease = config, store, lease
        self._lock = threading.Lock()
        self.registry = Registry(config)
        self._version = 0
        self._unwritable = ""
        """Why the lease could not be renewed last time."""
        self.state = CellState(cell=config.name)

    def open(self) -> None:
        """Read the stored state. Raises StateError, without overwriting anything.

        A state that can be read but not written is served; changes are refused until it can be.
        """
        with self._lock:
            failure = None
            try:
                self._renew()
            except StateError as error:
                failure = error
            self._read()
            if failure is not None and self._version == 0:
                raise failure
            self._begin()
        if failure is not None:
            log.error("cell /sax/%s: %s; changes are refused", self._config.name, failure)
        models = ", ".join(self.state.models) or "nothing"
        log.info("cell /sax/%s: %s is published, by %s", self._config.name, models, self._store.uri)

    def renew(self) -> None:
        """Renew the lease, or take it if the other cell's has expired. Call every RENEW_S.

        Raises StateError; calls that change something are then refused with it.
        """
        with self._lock:
            held = self._lease.held
            if self._renew() and not held:
                log.warning("cell /sax/%s: took the lease; this cell now changes the state", self._config.name)
                held = False
            if not held:  # another cell may have changed it
                self._read()
                self._begin()

    def _renew(self) -> bool:
        self._unwritable = ""
        try:
            return self._lease.renew()
        except Exception as error:  # object stores' errors have no common type
            self._unwritable = f"{self._store.uri} cannot be written: {getattr(error, 'strerror', None) or error}"
            raise StateError(self._unwritable) from error

    @property
    def undecided(self) -> bool:
        """Whether it is still open if another holder of the lease is alive; see Lease."""
        return self._lease.undecided

    def close(self) -> None:
        with self._lock:
            self._lease.release()

    # Clients' calls. Changes of a model return its name and new entry.

    def publish(self, principal: str | None, body: Mapping[str, Any]) -> tuple[str, Published]:
        name = self._name(body, calls.PUBLISH)
        check_length(name)
        if split(name)[1]:
            return name, self._publish_adapter(principal, name, body)
        model = Published(
            model_path=calls.text_of(body, "model_path"),
            checkpoint=calls.text_of(body, "checkpoint", ""),
            replicas=calls.replicas_of(body.get("replicas", 1)),
            overrides=calls.overrides_of(body.get("overrides", {})),
            published_at=int(time.time()),
            order=self.state.published,
        )
        self._may_change(principal, None)
        self.registry.config(name, model)
        with self._changing():
            if name in self.state.models:
                raise AlreadyTaken(f"{name} is published already; change it with PUT /update, or /unpublish it")
            model = model.model_copy(update={"order": self.state.published})
            self._write(self.state.with_model(name, model))
        log.info("published %s: %s, %d replicas", name, model.model_path, model.replicas)
        return name, model

    def _publish_adapter(self, principal: str | None, full_name: str, body: Mapping[str, Any]) -> Published:
        name, adapter = split(full_name)
        where = calls.text_of(body, "model_path")
        for field, allowed in (("checkpoint", ("", "None", where)), ("replicas", (1, "1")), ("overrides", ({},))):
            if body.get(field, allowed[0]) not in allowed:
                raise CellError(
                    f"{field} {body[field]!r}: an adapter is read from model_path, and runs on every replica of {name} "
                    f"as that is configured; leave {field} out"
                )
        with self._changing():
            before = self._published(name)
            self._may_change(principal, before)
            if adapter in before.adapters:
                raise AlreadyTaken(f"{full_name} is published already; /unpublish it first")
            new = PublishedAdapter(model_path=where, order=self.state.published)
            after = before.model_copy(update={"adapters": before.adapters | {adapter: new}})
            self.registry.adapters(after)
            self.registry.config(name, after)
            self._write(self.state.with_model(name, after))
        log.info("published %s: %s", full_name, where)
        return after

    def update(self, principal: str | None, body: Mapping[str, Any]) -> tuple[str, Published]:
        name = self._name(body, calls.UPDATE)
        with self._changing():
            before = self._published(name)
            self._may_change(principal, before)
            if body.get("model_path", before.model_path) != before.model_path:
                raise CellError(
                    f"model_path of {name} is {before.model_path} and cannot change; unpublish it and publish another"
                )
            changes: dict[str, Any] = {}
            if "checkpoint" in body:
                changes["checkpoint"] = calls.text_of(body, "checkpoint", "")
            if "replicas" in body:
                changes["replicas"] = calls.replicas_of(body["replicas"])
            if "overrides" in body:
                changes["overrides"] = calls.overrides_of(body["overrides"])
            after = before.model_copy(update=changes)
            self.registry.config(name, after)
            self._write(self.state.with_model(name, after))
        log.info("updated %s: %s", name, changes)
        return name, after

    def unpublish(self, principal: str | None, body: Mapping[str, Any]) -> tuple[str, Published]:
        name = self._name(body, calls.ONE_MODEL)
        with self._changing():
            model = self._named(name)
            self._may_change(principal, model)
            base, adapter = split(name)
            if adapter:
                left = {other: kept for other, kept in model.adapters.items() if other != adapter}
                self._write(self.state.with_model(base, model.model_copy(update={"adapters": left})))
            else:
                self._write(self.state.without_model(name))
        log.info("unpublished %s", name)
        return name, model

    def create(self, principal: str | None, body: Mapping[str, Any]) -> dict[str, str]:
        """Saxml's `create`. The cell exists already, so this only sets its admin ACL, if no other principal has."""
        calls.check_known(body, calls.CREATE)
        check_cell(body.get("sax_cell"), self._config.name)
        root = body.get("fs_root", self._config.state_uri)
        if root not in ("", self._config.state_uri):
            raise CellError(f"fs_root {root!r} is not this cell's state_uri, {self._config.state_uri}")
        admins = acl.parse(body.get("admin_acl", ""))
        with self._changing():
            if not acl.allows(self.admin_acl, principal):
                raise AlreadyTaken(f"/sax/{self._config.name} has admins already: {self.admin_acl}")
            self._not_locking_out(principal, admins)
            self._write(self.state.model_copy(update={"admin_acl": admins}))
        return {"sax_cell": f"/sax/{self._config.name}", "fs_root": self._config.state_uri, "admin_acl": admins}

    def set_acl(self, principal: str | None, body: Mapping[str, Any]) -> dict[str, str]:
        """Set who may change the cell or a model (`method` empty), or call one of a model's methods."""
        calls.check_known(body, calls.SET_ACL)
        names = acl.parse(body.get("acl"))
        target = body.get("model") or body.get("sax_cell")
        method = body.get("method") or ""
        with self._changing():
            if target == f"/sax/{self._config.name}":
                if method:
                    raise CellError("a cell has only an admin ACL; leave out method, or name a model")
                self._may_change(principal, None)
                self._not_locking_out(principal, names)
                self._write(self.state.model_copy(update={"admin_acl": names}))
                return {"model": target, "method": "", "acl": names}
            name = model_name(target, self._config.name)
            model = self._published(name)
            self._may_change(principal, model)
            changed = {"acls": model.acls | {acl.check_method(method): names}} if method else {"admin_acl": names}
            self._write(self.state.with_model(name, model.model_copy(update=changed)))
        return {"model": name, "method": method, "acl": names}

    def listed(self, body: Mapping[str, Any]) -> dict[str, Published]:
        """The model or adapter named in the body, or all of them. An adapter's state is that of its model."""
        if "model" not in body:
            return self.state.names
        name = self._name(body, calls.ONE_MODEL)
        return {name: self._named(name)}

    def get_acl(self, body: Mapping[str, Any]) -> dict[str, Any]:
        calls.check_known(body, calls.GET_ACL)
        target, method = body.get("model") or body.get("sax_cell"), body.get("method") or "all"
        if target in (None, f"/sax/{self._config.name}"):
            return {"model": f"/sax/{self._config.name}", "acls": {"admin": self.admin_acl}}
        name = model_name(target, self._config.name)
        model = self._published(name)
        acls = {"admin": model.admin_acl} | {known: model.acls.get(known, "") for known in acl.METHODS}
        if method != "all":
            acls = {method: acls[acl.check_method(method)]}
        return {"model": name, "acls": acls}

    @property
    def admin_acl(self) -> str:
        """Who may change anything in the cell; empty: everyone."""
        set_by_client = self.state.admin_acl
        return ",".join(self._config.admins) if set_by_client is None else set_by_client

    def _name(self, body: Mapping[str, Any], fields: calls.Fields) -> str:
        calls.check_known(body, fields)
        return model_name(body.get("model"), self._config.name)

    def _named(self, name: str) -> Published:
        """A published model; of an adapter, the model that it belongs to."""
        names = self.state.names
        if name not in names:
            there = ", ".join(names) or "nothing"
            raise NotPublished(f"{name} is not published; published here: {there}")
        return names[name]

    def _published(self, name: str) -> Published:
        found = self._named(name)
        if split(name)[1]:
            raise CellError(f"{name} is an adapter, which has no settings or ACLs of its own: name {split(name)[0]}")
        return found

    def _may_change(self, principal: str | None, model: Published | None) -> None:
        if acl.allows(self.admin_acl, principal):
            return
        if model is not None and model.admin_acl and acl.allows(model.admin_acl, principal):
            return
        raise NotAllowed(f"{principal} may not do this; the cell's admins are {self.admin_acl}")

    def _not_locking_out(self, principal: str | None, names: str) -> None:
        if not acl.allows(names, principal):
            raise CellError(f"admin_acl {names!r} would lock out {principal}, who sets it; add that name")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Holds the lock during a change. Raises Unavailable if another cell holds the lease, or this one cannot."""
        with self._lock:
            if not self._lease.held:
                if self._unwritable:
                    raise Unavailable(f"{self._unwritable}; the call changed nothing", retry_after_s=RENEW_S)
                where = self._lease.other or "unknown"
                raise Unavailable(
                    f"another cell ({where}) holds the lease of this state, so this one cannot change it; give this "
                    f"cell its own state_uri, or stop the other one: {LEASE_S:.0f} s later this one takes over",
                    retry_after_s=LEASE_S,
                )
            yield

    def _read(self) -> None:
        found = self._store.read()
        if found.state is not None:
            self._version, self.state = found.number, found.state

    def _begin(self) -> None:
        """Write the first version, if there is none and this cell holds the lease."""
        if self._version == 0 and self._lease.held:
            self._write(self.state)

    def _write(self, state: CellState) -> None:
        """Write the next version. The caller holds the lock."""
        try:
            self._store.write(self._version + 1, state)
        except StateTaken as error:
            self._read()
            raise Unavailable(f"{error}; the call changed nothing, retry it", retry_after_s=1) from error
        except StateError as error:
            raise Unavailable(f"{error}; the call changed nothing", retry_after_s=5) from error
        self._version += 1
        self.state = state
