"""The only access to the Kubernetes API: the official dynamic client with timeouts, retries and readable errors."""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import urllib3
from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ResourceNotFoundError, ResourceNotUniqueError
from kubernetes.dynamic.resource import Resource

from kuberay.cluster import credentials
from kuberay.cluster.errors import Absent, ClusterError, UnknownKind, explained
from kuberay.cluster.gke import remedy_for_missing
from kuberay.cluster.manifests import Manifest, title

MANAGER = "podslice"

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
LONGEST_RETRY_AFTER_S = 30

# Applying, and deleting by uid, are idempotent: every request may be retried.
RETRIES = urllib3.Retry(
    total=4,
    connect=2,
    backoff_factor=0.2,
    backoff_jitter=0.1,
    allowed_methods=None,
    status_forcelist=(429, 500, 502, 503, 504),
    raise_on_status=False,  # the last response says why
    respect_retry_after_header=True,
    retry_after_max=LONGEST_RETRY_AFTER_S,
)
CLIENT_ERRORS = (ApiException, urllib3.exceptions.HTTPError, OSError, ValueError)


class _Client(DynamicClient):  # type: ignore[misc]
    """Sets a timeout on every request, discovery included."""

    def request(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        params.setdefault("_request_timeout", (CONNECT_TIMEOUT_S, READ_TIMEOUT_S))
        return super().request(method, path, body, **params)


class Cluster:
    """A cluster and a default namespace. Methods raise ClusterError on failure, and nothing else."""

    def __init__(self, client: ApiClient, namespace: str, context: str | None):
        self.namespace = namespace
        self._server, self._context = client.configuration.host, context
        with self._explains("connecting"):
            # Discover the kinds each time: the client's cache file would go stale.
            self._client = _Client(client, cache_file=os.path.join(os.devnull, "no cache"))

    @classmethod
    def connect(
        cls, context: str | None = None, namespace: str | None = None, kubeconfig: str | None = None
    ) -> "Cluster":
        """Connects as kubectl would, or as this Pod's service account. namespace: by default the context's."""
        configuration, found, default = credentials.load(context, kubeconfig)
        configuration.retries = RETRIES
        # The final error says what urllib3 would log at each retry.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
        client = ApiClient(configuration)
        client.user_agent = MANAGER
        return cls(client, namespace or default, found)

    def apply(self, manifest: Manifest, dry_run: bool = False, force: bool = False) -> Manifest:
        """Server-side apply; returns the resulting object. Raises Refused (Conflict ...) if the server rejects it."""
        # Strict: a misspelt field is an error.
        query = [("fieldManager", MANAGER), ("fieldValidation", "Strict"), ("force", str(force).lower())]
        doing = f"{'checking' if dry_run else 'applying'} {title(manifest)}"
        return self._send("patch", manifest, doing, manifest, query, "application/apply-patch+yaml", dry_run)

    def patch(self, live: Manifest, change: Sequence[Manifest] | Manifest, dry_run: bool = False) -> Manifest:
        """JSON patch (a list), for single items of lists that server-side apply treats as one field, or merge patch."""
        query, merge = [("fieldManager", MANAGER)], isinstance(change, dict)
        kind = "application/merge-patch+json" if merge else "application/json-patch+json"
        body = change if merge else list(change)
        return self._send("patch", live, f"changing {title(live)}", body, query, kind, dry_run)

    def create(self, manifest: Manifest) -> Manifest:
        return self._send("post", manifest, f"creating {title(manifest)}", manifest, named=False)

    def get(self, manifest: Manifest) -> Manifest | None:
        """The live object of this kind, namespace and name, or None."""
        try:
            return self._send("get", manifest, f"reading {title(manifest)}")
        except Absent:
            return None

    def delete(
        self, live: Manifest, propagation: str = "Foreground", grace_s: int | None = None, unchanged: bool = False
    ) -> bool:
        """Deletes this object by uid, never a newer one of the same name. False if it is already gone.

        grace_s: a Pod's grace period instead of its own; also shortens that of a Pod that is already terminating.
        unchanged: raise Conflict, with nothing deleted, if the object is not as it was read.
        """
        known = ("uid", "resourceVersion") if unchanged else ("uid",)
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
            "preconditions": {name: live["metadata"][name] for name in known},
            **({} if grace_s is None else {"gracePeriodSeconds": grace_s}),
        }
        try:
            self._send("delete", live, f"deleting {title(live)}", options)
        except Absent:
            return False
        return True

    def list(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        labels: str | None = None,
        everywhere: bool = False,
    ) -> "list[Manifest]":
        """All objects of a kind in a namespace (by default this cluster's), or of a cluster-wide kind.

        everywhere: in all namespaces.
        """
        what = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "", "namespace": namespace}}
        query = [("labelSelector", labels)] if labels else []
        found = self._send("get", what, f"listing {kind}s", None, query, named=False, everywhere=everywhere)
        # The items of a list have no apiVersion and kind of their own.
        return [{"apiVersion": api_version, "kind": kind} | item for item in found["items"]]

    def namespace_of(self, manifest: Manifest) -> str:
        return manifest["metadata"].get("namespace") or self.namespace

    def _send(
        self,
        method: str,
        about: Manifest,
        doing: str,
        body: Any = None,
        query: Sequence[tuple[str, Any]] = (),
        content_type: str = "application/json",
        dry_run: bool = False,
        named: bool = True,
        everywhere: bool = False,
    ) -> Manifest:
        resource = self._resource(about["apiVersion"], about["kind"])
        namespace = self.namespace_of(about) if resource.namespaced and not everywhere else None
        path = resource.path(name=about["metadata"]["name"] if named else None, namespace=namespace)
        sent = [*query, *([("dryRun", "All")] if dry_run else [])]
        with self._explains(doing):
            response = self._client.request(
                method, path, body, query_params=sent, content_type=content_type, serialize=False
            )
            return json.loads(response.data)

    def _resource(self, api_version: str, kind: str) -> Resource:
        group, _, version = api_version.rpartition("/")
        with self._explains(f"asking for the kind {api_version} {kind}"):
            try:
                # With a prefix, the client queries only this group, not every group that has a v1.
                where = {"prefix": "apis", "group": group} if group else {"prefix": "api"}
                return self._client.resources.get(**where, api_version=version, kind=kind)
            except (ResourceNotFoundError, ResourceNotUniqueError) as error:
                remedy = remedy_for_missing(group, self._context)
                raise UnknownKind(f"the cluster does not know {api_version} {kind}: {remedy}") from error

    @contextmanager
    def _explains(self, doing: str) -> Iterator[None]:
        try:
            yield
        except ClusterError:
            raise
        except CLIENT_ERRORS as error:
            if isinstance(error, ValueError) and isinstance(error.__context__, urllib3.exceptions.HTTPError):
                error = error.__context__  # discovery hides the real cause behind a ValueError
            raise explained(error, doing, self._server, self._context) from error
