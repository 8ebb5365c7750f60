"""What can go wrong between here and a cluster, in words for the person who typed the command."""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes.client.exceptions import ApiException

from kuberay.cluster.gke import get_credentials

DENIED = re.compile(r"denied (the )?request", re.IGNORECASE)


class ClusterError(Exception):
    """The command did not do what was asked; the text says why and what to do about it."""


class Interrupted(ClusterError):
    """Ctrl-C in the middle; the text says how far it came."""


class Refused(ClusterError):
    """The API server looked at one object and said no. Other objects may still be fine."""

    of_what_is_there = False
    """Whether it is about the live object alone: with that deleted, the same manifest may be accepted."""


class UnknownKind(Refused):
    """The cluster has no such kind: a CRD is not installed."""


class Absent(Refused):
    """There is no object of this name."""


class WouldStop(Refused):
    """What is asked for would stop a service that could go on as it is."""


class CannotRehearse(Refused):
    """A webhook that looks at this kind does not take part in dry runs."""


@dataclass(frozen=True)
class FieldConflict:
    manager: str
    field: str


class Conflict(Refused):
    """Fields that would change belong to someone else."""

    of_what_is_there = True

    def __init__(self, text: str, conflicts: tuple[FieldConflict, ...] = ()):
        super().__init__(text)
        self.conflicts = conflicts

    def of(self, conflicts: "list[FieldConflict]") -> "Conflict":
        """The same about some of them."""
        doing = str(self).partition(":")[0]
        return Conflict(_owned_by_others(doing, conflicts), tuple(conflicts))


class NoNamespace(Refused):
    """The namespace that an object should go to does not exist."""

    def __init__(self, text: str, namespace: str):
        super().__init__(text)
        self.namespace = namespace


@dataclass(frozen=True)
class Where:
    """Which cluster was spoken to, as far as the errors need it."""

    server: str
    context: str | None = None


def explained(error: Exception, doing: str, where: Where) -> ClusterError:
    """The ClusterError for what the client raised while `doing` ("applying RayService x")."""
    if isinstance(error, ApiException) and error.status:
        return _answered(error, doing, where)
    return _not_answered(error, doing, where)


def _answered(error: ApiException, doing: str, where: Where) -> ClusterError:
    status = status_object(error)
    said = status.get("message") or error.reason or "no reason given"
    details = status.get("details") or {}
    match error.status:
        case 401:
            return ClusterError(
                f"{doing}: the cluster does not accept the credentials (401). They may have expired: "
                f"`gcloud auth login`, then `{get_credentials(where.context)}`."
            )
        case _ if DENIED.search(said):
            return Refused(f"{doing}: {said}")
        case 403:
            return Refused(
                f"{doing}: not allowed (403): {said}. Ask for a role that may, e.g. roles/container.developer, "
                "or choose another --context."
            )
        case 404 if details.get("kind") == "namespaces":
            name = details.get("name", "")
            return NoNamespace(
                f"{doing}: there is no namespace {name}. Make it (`kubectl create namespace {name}`) "
                "or choose another --namespace.",
                name,
            )
        case 404:
            return Absent(f"{doing}: {said}")
        case 409:
            return _conflict(said, details, doing)
        case 422:
            causes = [
                f"\n  {cause.get('field', '')}: {cause.get('message', '')}" for cause in details.get("causes", [])
            ]
            return _invalid(said, causes, doing)
        case 400 if "does not support dry run" in said:
            return CannotRehearse(f"{doing}: {said}")
        case 400:
            return Refused(f"{doing}: the cluster refused it (400): {said}")
        case 500 if "field not declared in schema" in said:
            return Refused(_unknown_field(said, doing))
        case code:
            return ClusterError(
                f"{doing}: {where.server} answered {code} again and again: {said}. Try again in a minute; if it stays, "
                "look at the cluster's page in the console."
            )


def _invalid(said: str, causes: list[str], doing: str) -> Refused:
    refusal = Refused(f"{doing}: the cluster finds it invalid: {said}{''.join(causes) if len(causes) > 1 else ''}")
    if "immutable" in said:
        refusal.of_what_is_there = True
        refusal.args = (f"{refusal}. It cannot be changed, only deleted and made anew: --recreate.",)
    return refusal


def _unknown_field(said: str, doing: str) -> str:
    field = said.rsplit("): ", 1)[-1].removesuffix(": field not declared in schema").lstrip(".")
    return (
        f"{doing}: the cluster's version of this kind has no field {field}. Is it misspelt? If not, the operator that "
        "is installed is older than the field: upgrade it, and its CRDs with it."
    )


def _conflict(said: str, details: dict[str, Any], doing: str) -> Conflict:
    causes = [cause for cause in details.get("causes", []) if cause.get("reason") == "FieldManagerConflict"]
    if not causes:
        return Conflict(f"{doing}: it was changed by someone else at the same time ({said}). Run the command again.")
    conflicts = tuple(
        FieldConflict(_manager(cause.get("message", "")), cause.get("field", "").lstrip(".")) for cause in causes
    )
    return Conflict(_owned_by_others(doing, conflicts), conflicts)


def _owned_by_others(doing: str, conflicts: Iterable[FieldConflict]) -> str:
    owners: dict[str, list[str]] = {}
    for conflict in conflicts:
        owners.setdefault(conflict.manager, []).append(conflict.field)
    fields = "".join(f"\n  {manager} owns {', '.join(names)}" for manager, names in owners.items())
    return (
        f"{doing}: others have set fields to other values:{fields}\n"
        "Take their value into the config, or overrule them and own these fields: --force-conflicts."
    )


def _manager(message: str) -> str:
    found = re.search(r'conflict with "([^"]+)"', message)
    return found.group(1) if found else message


def _not_answered(error: Exception, doing: str, where: Where) -> ClusterError:
    cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason else error
    text = str(cause.reason if isinstance(cause, ApiException) else cause)
    if isinstance(cause, urllib3.exceptions.SSLError) or "SSLError" in text:
        trouble = "its certificate is not the one that the kubeconfig expects; was the cluster made anew?"
        advice = f"Fetch the kubeconfig entry again: `{get_credentials(where.context)}`."
    elif isinstance(cause, urllib3.exceptions.NewConnectionError) and "refused" in text:
        trouble = "nothing listens at that address"
        advice = f"Is the cluster up, and the address still right? `{get_credentials(where.context)}` fetches it."
    elif isinstance(cause, urllib3.exceptions.ConnectTimeoutError):  # names that do not resolve too
        trouble = "there is no way to it from here (wrong address, VPN off, or a private control plane)"
        advice = f"If the cluster was made anew, its address changed: `{get_credentials(where.context)}`."
    elif isinstance(cause, urllib3.exceptions.TimeoutError):
        trouble, advice = "it took the request and did not answer in time", "Try again in a minute."
    elif isinstance(cause, urllib3.exceptions.ProtocolError):
        trouble, advice = "the connection broke again and again", "Try again in a minute."
    else:
        trouble, advice = text, f"Check the address in the kubeconfig, or fetch it: `{get_credentials(where.context)}`."
    return ClusterError(f"{doing}: cannot talk to the cluster at {where.server}: {trouble}. {advice}")


def status_object(error: ApiException) -> dict[str, Any]:
    """The Status that the server sent with an error; an empty dict where a proxy answered with something else."""
    with suppress(ValueError, TypeError):
        body = json.loads(error.body)
        if isinstance(body, dict):
            return body
    return {}
