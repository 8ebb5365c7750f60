"""The script that deletes what `script` made: what costs most first, what others may share only when it is unused."""

from collections.abc import Iterable

from kuberay.node_pools.bash import block, flag, joined, laid_out
from kuberay.node_pools.pools import Pool, pools, region
from kuberay.node_pools.setting import (
    LOCATED,
    REPOSITORY,
    head,
    kind,
    own_images,
    registry_location,
)
from ray_configs.job import Job
from ray_configs.service import Service

LISTED = """\
# Succeeds where the list command after it prints something. A list that fails ends the script: nothing that costs money
# is taken for deleted because nobody could look.
listed() {
  local found
  found="$("$@")" || exit 1
  [[ -n "${found}" ]]
}
"""
THERE = """\
# Succeeds where the cluster is there.
cluster_there() {
  listed gcloud container clusters list --format="value(name)" \\
    --filter="name=${CLUSTER_NAME} AND location=${LOCATION}"
}

# The cluster's node pools that the filter lets through.
node_pools() {
  gcloud container node-pools list --format="value(name)" \\
    --cluster="${CLUSTER_NAME}" --location="${LOCATION}" --filter="$1"
}
"""


def teardown(config: Service | Job) -> str:
    """A bash script. gcloud asks before each deletion; CLOUDSDK_CORE_DISABLE_PROMPTS=1 answers yes."""
    planned = pools(config)
    return joined(
        [
            head(
                config,
                f"Deletes what the {kind(config)} {config.name} had on Google Cloud. First delete the {kind(config)} "
                "itself (python -m kuberay delete CONFIG), so that its load balancers go with it. gcloud asks before "
                "each deletion; with CLOUDSDK_CORE_DISABLE_PROMPTS=1 in the environment the answer is yes.",
                LISTED,
                THERE,
            ),
            *_node_pools(planned),
            *_workload_policies(config, planned),
            _cluster(),
            _identity(config),
            _repository(config),
            _bucket(config),
        ]
    )


def _when(look: str, delete: str) -> str:
    return f"if {look}; then\n{delete}fi\n"


def _node_pools(planned: tuple[Pool, ...]) -> Iterable[str]:
    for i, pool in enumerate(planned):
        deletion = _when(
            f'cluster_there && listed node_pools "name={pool.name}"',
            laid_out(
                f"gcloud container node-pools delete {pool.name}",
                ['--cluster="${CLUSTER_NAME}"', LOCATED],
                indent="  ",
            ),
        )
        yield block("The node pools first: TPUs are nearly all of the bill.", deletion) if i == 0 else deletion


def _workload_policies(config: Service | Job, planned: tuple[Pool, ...]) -> Iterable[str]:
    where = region(config)
    for name in dict.fromkeys(pool.workload_policy for pool in planned if pool.workload_policy):
        policies = f"gcloud compute resource-policies list --filter=name={name}"
        yield block(
            "The workload policy, which no pool uses any more.",
            _when(
                f'listed {policies} --format="value(name)"',
                laid_out(f"gcloud compute resource-policies delete {name}", [flag("region", where)], indent="  "),
            ),
        )


def _cluster() -> str:
    return block(
        "The cluster, unless other configs still have pools in it; then it stays, with all that they may share.",
        "if cluster_there; then\n"
        '  if listed node_pools "name!=default-pool"; then\n'
        '    echo "Cluster ${CLUSTER_NAME} has other node pools: it stays, and so does what is shared with them." >&2\n'
        "    exit 0\n"
        "  fi\n",
        laid_out('gcloud container clusters delete "${CLUSTER_NAME}"', [LOCATED], indent="  "),
        "fi\n",
    )


def _identity(config: Service | Job) -> str:
    if config.service_account is None:
        return ""
    accounts = 'gcloud iam service-accounts list --filter="email=${SERVICE_ACCOUNT_EMAIL}"'
    return block(
        "The IAM service account; its rights go with it.",
        _when(
            f'listed {accounts} --format="value(email)"',
            laid_out('gcloud iam service-accounts delete "${SERVICE_ACCOUNT_EMAIL}"', indent="  "),
        ),
    )


def _repository(config: Service | Job) -> str:
    if not own_images(config):
        return ""
    where = flag("location", registry_location())
    repositories = f"gcloud artifacts repositories list {where} --filter='name~/{REPOSITORY}$'"
    return block(
        "The images.",
        _when(
            f'listed {repositories} --format="value(name)"',
            laid_out(f"gcloud artifacts repositories delete {REPOSITORY}", [where], indent="  "),
        ),
    )


def _bucket(config: Service | Job) -> str:
    if config.bucket is None:
        return ""
    return block(
        "The bucket, last and only if DELETE_BUCKET=yes: checkpoints are hours of work, and nothing brings them back.",
        'if [[ "${DELETE_BUCKET:-no}" == yes ]]; then\n'
        '  gcloud storage rm --recursive "gs://${BUCKET_NAME}"\n'
        "else\n"
        '  echo "The bucket gs://${BUCKET_NAME} stays; DELETE_BUCKET=yes deletes it and all that is in it." >&2\n'
        "fi\n",
    )
