"""Errors of the Kubernetes API, with a text for the person who typed the command."""

import json
import re
from contextlib import suppress
from typing import Any

import urllib3
from kubernetes.client.exceptions import ApiException

from kuberay import Refusal
from kuberay.cluster.gke import get_credentials


class ClusterError(Refusal):
    """The command failed; the text says why and what to do about it."""


class Interrupted(ClusterError):
    """Ctrl-C before the end; the text says what was done."""

    status = 130


class Refused(ClusterError):
    """The API server rejected one object. Others may still be accepted."""


class UnknownKind(Refused):
    """The cluster has no such kind: a CRD is not installed."""


class WouldStop(Refused):
    """The change would stop a running service."""

    status = 1


class Immutable(Refused):
    """The live object cannot be updated to this one; it must be deleted and recreated."""


class Absent(Refused):
    """There is no such object, or its namespace does not exist."""

    def __init__(self, text: str, namespace: str = ""):
        super().__init__(text)
        self.namespace = namespace


class Conflict(Refused):
    """Other field managers own the fields, or the object changed at the same time."""

    def __init__(self, text: str, managers: frozenset[str] = frozenset()):
        super().__init__(text)
        self.managers = managers


def explained(error: Exception, doing: str, server: str, context: str | None) -> ClusterError:
    """The ClusterError for what the client raised while `doing` ("applying RayService x")."""
    login = f"`{get_credentials(context)}`"
    if isinstance(error, ApiException) and error.status:
        return _answered(error, doing, server, login)
    cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError | ApiException) else error
    return ClusterError(
        f"{doing}: cannot reach the cluster at {server}: {cause}. Is it up and reachable from here (VPN, private "
        f"control plane)? If it was recreated, its address and certificate have changed: {login}."
    )


def _answered(error: ApiException, doing: str, server: str, login: str) -> ClusterError:
    status: dict[str, Any] = {}  # stays empty if a proxy answered instead of the API server
    with suppress(ValueError, TypeError):
        status |= json.loads(error.body)
    message = status.get("message") or error.reason or "no reason given"
    details = status.get("details") or {}
    match error.status:
        case 401:
            return ClusterError(
                f"{doing}: the cluster does not accept the credentials (401). They may have expired: "
                f"`gcloud auth login`, then {login}."
            )
        case 403 if not re.search(r"denied (the )?request", message, re.IGNORECASE):  # a webhook's denial is below
            return Refused(
                f"{doing}: not allowed (403): {message}. Ask for a role that may, e.g. roles/container.developer, "
                "or choose another --context."
            )
        case 404 if details.get("kind") == "namespaces":
            name = details.get("name", "")
            advice = f"Create it (`kubectl create namespace {name}`) or choose another --namespace."
            return Absent(f"{doing}: there is no namespace {name}. {advice}", name)
        case 404:
            return Absent(f"{doing}: {message}")
        case 409:
            return _conflict(message, details.get("causes", []), doing)
        case 422 if "immutable" in message:
            return Immutable(f"{doing}: {message}. It cannot be changed, only deleted and recreated: --recreate.")
        case 400 | 403 | 422:
            return Refused(f"{doing}: the cluster rejected it ({error.status}): {message}")
        case 500 if "field not declared in schema" in message:
            field = message.rsplit("): ", 1)[-1].removesuffix(": field not declared in schema").lstrip(".")
            return Refused(
                f"{doing}: the cluster's version of this kind has no field {field}. Is it misspelt? If not, the "
                "installed operator is older than the field: upgrade it and its CRDs."
            )
        case code:
            return ClusterError(
                f"{doing}: {server} answered {code}: {message}. Try again in a minute; if that fails too, look at the "
                "cluster's page in the console."
            )


def _conflict(message: str, causes: list[dict[str, Any]], doing: str) -> Conflict:
    owners: dict[str, list[str]] = {}
    for cause in causes:
        if found := re.search(r'conflict with "([^"]+)"', cause.get("message", "")):
            owners.setdefault(found[1], []).append(cause.get("field", "").lstrip("."))
    if not owners:
        return Conflict(f"{doing}: it changed at the same time ({message}). Run the command again.")
    fields = "".join(f"\n  {manager} owns {', '.join(names)}" for manager, names in owners.items())
    advice = "Put their values into the config, or overwrite them and take over these fields: --force-conflicts."
    return Conflict(f"{doing}: other field managers have set other values:{fields}\n{advice}", frozenset(owners))
