"""What can go wrong between here and a cluster, in words for the person who typed the command."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes.client.exceptions import ApiException

from kuberay.cluster.gke import get_credentials

DENIED = re.compile(r"denied (the )?request", re.IGNORECASE)
AGAIN = "Try again in a minute."


class ClusterError(Exception):
    """The command did not do what was asked; the text says why and what to do about it."""


class Interrupted(ClusterError):
    """Ctrl-C in the middle; the text says how far it came."""


class Refused(ClusterError):
    """The API server looked at one object and said no. Other objects may still be fine."""


class UnknownKind(Refused):
    """The cluster has no such kind: a CRD is not installed."""


class Absent(Refused):
    """There is no object of this name."""


class WouldStop(Refused):
    """What is asked for would stop a service that could go on as it is."""


class CannotRehearse(Refused):
    """A webhook that looks at this kind does not take part in dry runs."""


class Immutable(Refused):
    """The live object cannot become this one; deleted, it can be made anew."""


@dataclass(frozen=True)
class FieldConflict:
    manager: str
    field: str


class Conflict(Refused):
    """Fields that would change belong to someone else."""

    def __init__(self, text: str, doing: str = "", conflicts: Sequence[FieldConflict] = ()):
        super().__init__(text)
        self.doing, self.conflicts = doing, conflicts

    @classmethod
    def over(cls, doing: str, conflicts: Sequence[FieldConflict]) -> "Conflict":
        owners: dict[str, list[str]] = {}
        for conflict in conflicts:
            owners.setdefault(conflict.manager, []).append(conflict.field)
        fields = "".join(f"\n  {manager} owns {', '.join(names)}" for manager, names in owners.items())
        advice = "Take their value into the config, or overrule them and own these fields: --force-conflicts."
        return cls(f"{doing}: others have set fields to other values:{fields}\n{advice}", doing, conflicts)


class NoNamespace(Refused):
    """The namespace that an object should go to does not exist."""

    def __init__(self, text: str, namespace: str):
        super().__init__(text)
        self.namespace = namespace


def explained(error: Exception, doing: str, server: str, context: str | None) -> ClusterError:
    """The ClusterError for what the client raised while `doing` ("applying RayService x")."""
    login = f"`{get_credentials(context)}`"
    if isinstance(error, ApiException) and error.status:
        return _answered(error, doing, server, login)
    trouble, advice = _no_answer(error, login)
    return ClusterError(f"{doing}: cannot talk to the cluster at {server}: {trouble}. {advice}")


def _answered(error: ApiException, doing: str, server: str, login: str) -> ClusterError:
    status = _status(error)
    said = status.get("message") or error.reason or "no reason given"
    details = status.get("details") or {}
    match error.status:
        case 401:
            return ClusterError(
                f"{doing}: the cluster does not accept the credentials (401). They may have expired: "
                f"`gcloud auth login`, then {login}."
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
            advice = f"Make it (`kubectl create namespace {name}`) or choose another --namespace."
            return NoNamespace(f"{doing}: there is no namespace {name}. {advice}", name)
        case 404:
            return Absent(f"{doing}: {said}")
        case 409:
            return _conflict(said, details.get("causes", []), doing)
        case 422:
            causes = [f"\n  {item.get('field', '')}: {item.get('message', '')}" for item in details.get("causes", [])]
            text = f"{doing}: the cluster finds it invalid: {said}{''.join(causes) if len(causes) > 1 else ''}"
            if "immutable" in said:
                return Immutable(f"{text}. It cannot be changed, only deleted and made anew: --recreate.")
            return Refused(text)
        case 400 if "does not support dry run" in said:
            return CannotRehearse(f"{doing}: {said}")
        case 400:
            return Refused(f"{doing}: the cluster refused it (400): {said}")
        case 500 if "field not declared in schema" in said:
            field = said.rsplit("): ", 1)[-1].removesuffix(": field not declared in schema").lstrip(".")
            return Refused(
                f"{doing}: the cluster's version of this kind has no field {field}. Is it misspelt? If not, the "
                "operator that is installed is older than the field: upgrade it, and its CRDs with it."
            )
        case code:
            return ClusterError(
                f"{doing}: {server} answered {code} again and again: {said}. {AGAIN} If it stays, look at the "
                "cluster's page in the console."
            )


def _conflict(said: str, causes: list[dict[str, Any]], doing: str) -> Conflict:
    conflicts = [
        FieldConflict(found[1], cause.get("field", "").lstrip("."))
        for cause in causes
        if (found := re.search(r'conflict with "([^"]+)"', cause.get("message", "")))
    ]
    if conflicts:
        return Conflict.over(doing, conflicts)
    return Conflict(f"{doing}: it was changed by someone else at the same time ({said}). Run the command again.")


def _no_answer(error: Exception, login: str) -> tuple[str, str]:
    """What is wrong, and what to do about it."""
    cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason else error
    text = str(cause.reason if isinstance(cause, ApiException) else cause)
    if isinstance(cause, urllib3.exceptions.SSLError) or "SSLError" in text:
        return (
            "its certificate is not the one that the kubeconfig expects; was the cluster made anew?",
            f"Fetch the kubeconfig entry again: {login}.",
        )
    if isinstance(cause, urllib3.exceptions.NewConnectionError) and "refused" in text:
        return "nothing listens at that address", f"Is the cluster up, and the address right? {login} fetches it."
    if isinstance(cause, urllib3.exceptions.ConnectTimeoutError):  # names that do not resolve too
        return (
            "there is no way to it from here (wrong address, VPN off, or a private control plane)",
            f"If the cluster was made anew, its address changed: {login}.",
        )
    if isinstance(cause, urllib3.exceptions.TimeoutError):
        return "it took the request and did not answer in time", AGAIN
    if isinstance(cause, urllib3.exceptions.ProtocolError):
        return "the connection broke again and again", AGAIN
    return text, f"Check the address in the kubeconfig, or fetch it: {login}."


def _status(error: ApiException) -> dict[str, Any]:
    """The Status that the server sent with an error; an empty dict where a proxy answered with something else."""
    with suppress(ValueError, TypeError):
        body = json.loads(error.body)
        if isinstance(body, dict):
            return body
    return {}
