"""Server-side apply of all objects: first as a dry run of every one, so that a refused object changes nothing."""

from collections.abc import Callable, Sequence

from kuberay.cluster.connection import Applied, Cluster
from kuberay.cluster.errors import CannotRehearse, ClusterError, Interrupted, NoNamespace, Refused
from kuberay.cluster.manifests import Manifest, title


def apply(
    cluster: Cluster,
    objects: Sequence[Manifest],
    dry_run: bool = False,
    force_conflicts: bool = False,
    on_applied: Callable[[Applied], None] = lambda applied: None,
) -> list[Applied]:
    """Makes the cluster's objects be as these say, in this order, as field manager "podslice".

    With dry_run, says what would happen and changes nothing. `on_applied` hears of each object at once. Raises Refused
    (Conflict, UnknownKind, NoNamespace) with nothing changed if the server rejects any object, Interrupted on Ctrl-C
    and ClusterError on other failures; after a change, their text says how far it came.
    """
    try:
        checked = rehearse(cluster, objects, force_conflicts)
    except KeyboardInterrupt:
        raise Interrupted("Interrupted. Nothing was changed.") from None
    if dry_run:
        for applied in checked:
            on_applied(applied)
        return checked
    done: list[Applied] = []
    try:
        for manifest in objects:
            done.append(cluster.apply(manifest, force_conflicts=force_conflicts))
            on_applied(done[-1])
    except KeyboardInterrupt:
        raise Interrupted(f"Interrupted. {_how_far(objects, done)}") from None
    except ClusterError as error:
        raise ClusterError(f"{error}\n{_how_far(objects, done)}") from error
    return done


def rehearse(cluster: Cluster, objects: Sequence[Manifest], force_conflicts: bool = False) -> list[Applied]:
    """What applying would do to each object, asked of the server. Raises Refused with every refusal, not the first.

    Objects that go into a namespace which is itself among the objects, and not there yet, cannot be asked about: they
    are left out; so are those whose webhooks take no part in dry runs.
    """
    made_here = {item["metadata"]["name"] for item in objects if item["kind"] == "Namespace"}
    checked: list[Applied] = []
    refusals: list[Refused] = []
    for manifest in objects:
        try:
            checked.append(cluster.apply(manifest, dry_run=True, force_conflicts=force_conflicts))
        except NoNamespace as refusal:
            if refusal.namespace not in made_here:
                refusals.append(refusal)
        except CannotRehearse:
            continue
        except Refused as refusal:
            refusals.append(refusal)
    if len(refusals) == 1:
        refusals[0].args = (f"{refusals[0]}\nNothing was changed.",)
        raise refusals[0]
    if refusals:
        # Objects of one kind that is not installed, or one namespace that is not there, fail alike.
        words = list(dict.fromkeys(str(refusal) for refusal in refusals))
        raise Refused(
            "\n".join([*words, f"{len(refusals)} of {len(objects)} objects were refused. Nothing was changed."])
        )
    return checked


def _how_far(objects: Sequence[Manifest], done: Sequence[Applied]) -> str:
    names = [title(manifest) for manifest in objects]
    sent, left = names[len(done) : len(done) + 1], names[len(done) + 1 :]
    return (
        f"Applied: {', '.join(names[: len(done)]) or 'nothing'}. "
        f"Under way, perhaps applied: {', '.join(sent) or 'nothing'}. "
        f"Not applied: {', '.join(left) or 'nothing else'}. "
        "Applying again is safe: what is there already stays as it is."
    )
