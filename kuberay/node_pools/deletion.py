"""The script that deletes what `script` made: what costs most first, what others may share only when it is unused."""

from collections.abc import Iterable

from kuberay.node_pools.bash import block, flag, joined, laid_out
from kuberay.node_pools.pools import pools, region
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
CLUSTER = """\
# The cluster, unless other configs still have pools in it; then it stays, with all that they may share.
if cluster_there; then
  if listed node_pools "name!=default-pool"; then
    echo "Cluster ${CLUSTER_NAME} has other node pools: it stays, and so does what is shared with them." >&2
    exit 0
  fi
  gcloud container clusters delete "${CLUSTER_NAME}" --location="${LOCATION}"
fi
"""
BUCKET = """\
# The bucket, last and only if DELETE_BUCKET=yes: checkpoints are hours of work, and nothing brings them back.
if [[ "${DELETE_BUCKET:-no}" == yes ]]; then
  gcloud storage rm --recursive "gs://${BUCKET_NAME}"
else
  echo "The bucket gs://${BUCKET_NAME} stays; DELETE_BUCKET=yes deletes it and all that is in it." >&2
fi
"""


def teardown(config: Service | Job) -> str:
    """A bash script. gcloud asks before each deletion; CLOUDSDK_CORE_DISABLE_PROMPTS=1 answers yes."""
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
            *_tpus(config),
            CLUSTER,
            *_around(config),
            BUCKET if config.bucket is not None else "",
        ]
    )


def _if_listed(look: str, delete: str, *flags: str) -> str:
    return f"if {look}; then\n{laid_out(delete, flags, indent='  ')}fi\n"


def _tpus(config: Service | Job) -> Iterable[str]:
    """The node pools, and the workload policies that they alone used."""
    planned = pools(config)
    for i, pool in enumerate(planned):
        look, delete = f'listed node_pools "name={pool.name}"', f"gcloud container node-pools delete {pool.name}"
        deletion = _if_listed(f"cluster_there && {look}", delete, '--cluster="${CLUSTER_NAME}"', LOCATED)
        yield deletion if i else block("The node pools first: TPUs are nearly all of the bill.", deletion)
    policies = "gcloud compute resource-policies"
    for name in dict.fromkeys(pool.workload_policy for pool in planned if pool.workload_policy):
        look = f'listed {policies} list --filter=name={name} --format="value(name)"'
        deletion = _if_listed(look, f"{policies} delete {name}", flag("region", region(config)))
        yield block("The workload policy, which no pool uses any more.", deletion)


def _around(config: Service | Job) -> Iterable[str]:
    """The service account and the images."""
    if config.service_account is not None:
        accounts, email = "gcloud iam service-accounts", "${SERVICE_ACCOUNT_EMAIL}"
        look = f'listed {accounts} list --filter="email={email}" --format="value(email)"'
        yield block("The IAM service account; its rights go with it.", _if_listed(look, f'{accounts} delete "{email}"'))
    if own_images(config):
        repositories, where = "gcloud artifacts repositories", flag("location", registry_location())
        look = f"listed {repositories} list {where} --filter='name~/{REPOSITORY}$' --format=\"value(name)\""
        yield block("The images.", _if_listed(look, f"{repositories} delete {REPOSITORY}", where))
