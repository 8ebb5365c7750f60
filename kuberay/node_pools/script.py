"""The script that creates everything: the cluster, its node pools, the bucket, the rights, the Secrets, the images."""

from collections.abc import Iterable

from kuberay.node_pools.bash import EXISTS, block, flag, joined, laid_out, quote, unless_there
from kuberay.node_pools.pool_flags import create_flags
from kuberay.node_pools.pools import Pool, is_zone, pools, region
from kuberay.node_pools.setting import (
    CLUSTER_FLAGS,
    LOCATED,
    REPOSITORY,
    apis,
    cpu_nodes,
    head,
    kind,
    kubernetes_accounts,
    own_images,
    registry_location,
)
from kuberay.node_pools.versions import minimum_version, refuse_old_version
from ray_configs.capacity import KUEUE_VERSION, NEWER_KUEUE_VERSION, WHY_NO_NEWER_KUEUE, Queued
from ray_configs.job import Job
from ray_configs.service import Service
from ray_configs.tpu import TpuSlice

KUEUE = "https://github.com/kubernetes-sigs/kueue/releases/download/v${KUEUE_VERSION}/manifests.yaml"
_RAY_SERVICE = '{.spec.versions[?(@.name=="v1")].schema.openAPIV3Schema.properties.spec.properties'
OPERATOR_MARKS = (
    f"jsonpath={_RAY_SERVICE}.managedBy.type}}/{_RAY_SERVICE}.rayClusterConfig.properties.historyServerOptions.type}}"
)
"""What the CRD of RayServices tells of KubeRay's version: `/` before 1.6, `string/` for 1.6, then `string/object`."""


def commands(config: Service | Job) -> str:
    """A bash script. Run again, it makes what is still missing and leaves the rest as it is.

    Raises ConfigError where the config cannot be had on Google Cloud.
    """
    planned = pools(config)
    refuse_old_version(config)
    return joined(
        [
            head(
                config,
                f"What the {kind(config)} {config.name} needs on Google Cloud. Read it, then run it from the project's "
                "root, with gcloud (logged in, up to date) and kubectl with gke-gcloud-auth-plugin. Running it again "
                "makes what is still missing and changes nothing else: to change a pool, delete it and run this again.",
                EXISTS,
            ),
            _apis(planned),
            _cluster(config),
            _credentials(),
            _namespace(config),
            _bucket(config),
            *_identity(config),
            *_secrets(config),
            _kueue(config),
            *_images(config),
            *_node_pools(config, planned),
        ]
    )


def _apis(planned: tuple[Pool, ...]) -> str:
    services = (f"{name}.googleapis.com" for name in apis(planned))
    return block("The services of the project that the rest uses.", laid_out("gcloud services enable", services))


def _cluster(config: Service | Job) -> str:
    cloud = config.cloud
    least, reason = minimum_version(config)
    why = (
        "A Standard cluster, the same for every config: several may share it. The add-ons: Ray's operator with the TPU "
        "webhook, buckets as folders, and the two that are on unless a list leaves them out. --workload-pool lets Pods "
        "act as IAM service accounts. The default pool has the Ray heads and Pods without TPUs. "
        f"Needs GKE {least} or later, for {reason}"
    )
    if cloud.cluster_version:
        why, version = f"{why}.", flag("cluster-version", cloud.cluster_version)
    else:
        why += "; the operator's version comes with GKE's, and the rapid channel has the newest."
        version = "--release-channel=rapid"
    flags = [
        LOCATED,
        *([flag("node-locations", ",".join(cloud.zones))] if cloud.zones and not is_zone(cloud.location) else []),
        version,
        "--addons=HttpLoadBalancing,HorizontalPodAutoscaling,RayOperator,GcsFuseCsiDriver",
        '--workload-pool="${PROJECT_ID}.svc.id.goog"',
        "--gateway-api=standard",
        "--enable-managed-prometheus",
        flag("machine-type", cloud.head_machine_type),
        "--num-nodes=1",
        "--enable-autoscaling",
        "--total-min-nodes=1",
        f"--total-max-nodes={cpu_nodes(config)}",
    ]
    return unless_there(why, 'gcloud container clusters {} "${{CLUSTER_NAME}}"', flags, LOCATED)


def _node_pools(config: Service | Job, planned: tuple[Pool, ...]) -> Iterable[str]:
    """Last: from here on it costs, and only here can machines be lacking."""
    policies: set[str] = set()
    for pool in planned:
        if pool.workload_policy and pool.slice and pool.workload_policy not in policies:
            policies.add(pool.workload_policy)
            yield _workload_policy(config, pool.workload_policy, pool.slice)
        flags = ['--cluster="${CLUSTER_NAME}"', LOCATED, *create_flags(pool)]
        yield unless_there(_about(pool), f"gcloud container node-pools {{}} {pool.name}", flags, CLUSTER_FLAGS)


def _about(pool: Pool) -> str:
    slice = pool.slice
    if slice is None:
        return f"Machines for Pods without TPUs: {pool.nodes} to {pool.max_nodes} ({pool.capacity.kind})."
    chips = f"{slice.chips_per_host} chip{'s' * (slice.chips_per_host > 1)}"
    if slice.single_host:
        limit = f"{pool.nodes} to {pool.max_nodes}" if pool.autoscaled else str(pool.nodes)
        return f"Hosts of {chips}, each a {slice} slice by itself: {limit} ({pool.capacity.kind})."
    size = f"One {slice} slice: {slice.hosts} hosts of {chips} ({pool.capacity.kind})."
    return f"{size} The autoscaler makes all of them or none." if pool.autoscaled else size


def _workload_policy(config: Service | Job, name: str, slice: TpuSlice) -> str:
    where = flag("region", region(config))
    return unless_there(
        f"{slice.generation} places the hosts of a slice by a workload policy, which holds the topology; the "
        "pools must not repeat it.",
        f"gcloud compute resource-policies {{}} {name}",
        ["--type=HIGH_THROUGHPUT", flag("accelerator-topology", slice.topology), where],
        where,
        make="create workload-policy",
    )


def _credentials() -> str:
    return block(
        "From here on, kubectl talks to this cluster.",
        laid_out('gcloud container clusters get-credentials "${CLUSTER_NAME}"', [LOCATED]),
    )


def _namespace(config: Service | Job) -> str:
    if config.namespace == "default":
        return ""
    why = "The namespace of everything that is rendered."
    return unless_there(why, 'kubectl {} namespace "${{NAMESPACE}}"', look="get")


def _bucket(config: Service | Job) -> str:
    if config.bucket is None:
        return ""
    flags = [flag("location", region(config)), "--uniform-bucket-level-access", "--public-access-prevention"]
    why = "The bucket, in the cluster's region. Rights are the bucket's alone, never single objects', and never public."
    return unless_there(why, 'gcloud storage buckets {} "gs://${{BUCKET_NAME}}"', flags)


def _identity(config: Service | Job) -> Iterable[str]:
    identity = config.service_account
    if identity is None:
        return
    yield block(
        "The IAM service account that the Pods act as.",
        'exists gcloud iam service-accounts describe "${SERVICE_ACCOUNT_EMAIL}" ||\n',
        laid_out(f"gcloud iam service-accounts create {identity.service_account}", indent="  "),
    )
    if config.bucket is not None:
        yield block(
            "What it may do, in this bucket: a role in the project would open every other bucket too. The second role "
            "reads the bucket's own metadata, which some clients ask for before they read or write.",
            *(
                laid_out(
                    'gcloud storage buckets add-iam-policy-binding "gs://${BUCKET_NAME}"',
                    ['--member="serviceAccount:${SERVICE_ACCOUNT_EMAIL}"', f"--role={role}"],
                )
                for role in (identity.bucket_role, "roles/storage.legacyBucketReader")
            ),
        )
    yield block(
        "The Pods' Kubernetes service accounts may act as it. The manifests hold them, annotated.",
        *(
            laid_out(
                'gcloud iam service-accounts add-iam-policy-binding "${SERVICE_ACCOUNT_EMAIL}"',
                [
                    "--role=roles/iam.workloadIdentityUser",
                    f'--member="serviceAccount:${{PROJECT_ID}}.svc.id.goog[${{NAMESPACE}}/{account}]"',
                ],
            )
            for account in kubernetes_accounts(config)
        ),
    )


def _secrets(config: Service | Job) -> Iterable[str]:
    wanted = (
        (config.hugging_face_token, "HF_TOKEN", "Hugging Face token"),
        (getattr(config, "api_keys", None), "PODSLICE_API_KEYS", "API keys, KEY or NAME=KEY, comma-separated"),
    )
    entries: dict[str, list[tuple[str, str, str]]] = {}
    for secret, variable, what in wanted:
        if secret is not None:
            entries.setdefault(secret.secret, []).append((secret.key, variable, what))
    for name, values in entries.items():
        asked = "".join(
            f'  [[ -n "${{{variable}:-}}" ]] || read -rsp "{what}: " {variable}\n' for _, variable, what in values
        )
        # A file that is a pipe: the value is on no command line.
        files = [f'--from-file={quote(key)}=<(printf %s "${{{variable}}}")' for key, variable, _ in values]
        create = laid_out(
            f"kubectl create secret generic {quote(name)}", ['--namespace="${NAMESPACE}"', *files], indent="  "
        )
        variables_named = " and ".join(variable for _, variable, _ in values)
        yield block(
            f"A Secret from the environment's {variables_named}, or asked for where that is not set.",
            f'if ! exists kubectl get secret {quote(name)} --namespace="${{NAMESPACE}}"; then\n{asked}{create}fi\n',
        )


def _kueue(config: Service | Job) -> str:
    if not any(isinstance(group.capacity, Queued) for group in config.worker_groups):
        return ""
    apply = laid_out("kubectl apply --server-side", [f'--filename="{KUEUE}"'], indent="  ")
    return block(
        "Kueue, which asks for all machines of a queued slice at once. The manifests hold the queue. Jobs run with any "
        f"version, services not: {WHY_NO_NEWER_KUEUE}. The operator's version is read from what its RayServices have; "
        "1.6.0 would need the older one too, and cannot be told from 1.6.1.",
        "if ! exists kubectl get crd clusterqueues.kueue.x-k8s.io; then\n",
        f'  marks="$(kubectl get crd rayservices.ray.io --output={quote(OPERATOR_MARKS)})"\n',
        f"  KUEUE_VERSION={KUEUE_VERSION}\n",
        f"  if [[ $marks == string/ ]]; then KUEUE_VERSION={NEWER_KUEUE_VERSION}; fi\n",
        apply,
        "fi\n",
    )


def _images(config: Service | Job) -> Iterable[str]:
    images = own_images(config)
    if not images:
        return
    where = flag("location", registry_location())
    why, repository = "The project's image repository.", f"gcloud artifacts repositories {{}} {REPOSITORY}"
    yield unless_there(why, repository, ["--repository-format=docker", where], where)
    node_account = '"serviceAccount:${PROJECT_NUMBER}-compute@developer.gserviceaccount.com"'
    yield block(
        "The nodes may pull from it: their account has that right by itself only in older projects.",
        'PROJECT_NUMBER="$(gcloud projects describe "${PROJECT_ID}" --format="value(projectNumber)")"\n',
        laid_out(
            f"gcloud artifacts repositories add-iam-policy-binding {REPOSITORY}",
            [where, f"--member={node_account}", "--role=roles/artifactregistry.reader"],
        ),
    )
    looks = " &&\n  ".join(f"exists gcloud artifacts docker images describe {image}" for image in images)
    build = laid_out("gcloud builds submit .", ["--config=kuberay/image/cloudbuild.yaml"], indent="  ")
    yield block(
        "The images, built in the cloud if this version of one is missing.",
        f"{looks} ||\n{build}" if len(images) == 1 else f"{{ {looks}; }} ||\n{build}",
    )
