"""Names that Kubernetes, GKE, Kueue, KubeRay and Ray give to labels, annotations, taints and resources."""

# GKE: the resource and the labels of TPU nodes. The resource's name is also the taint's.
TPU = "google.com/tpu"
ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
DYNAMIC_SLICE = "cloud.google.com/gke-tpu-slice"
DYNAMIC_SLICE_TOPOLOGY = "cloud.google.com/gke-tpu-slice-topology"

# GKE: how the machines of a node are bought. QUEUED is a taint, the others are labels.
SPOT = "cloud.google.com/gke-spot"
FLEX_START = "cloud.google.com/gke-flex-start"
QUEUED = "cloud.google.com/gke-queued"
PROVISIONING = "cloud.google.com/gke-provisioning"
RESERVATION = "cloud.google.com/reservation-name"
RESERVATION_PROJECT = "cloud.google.com/reservation-project"
COMPUTE_CLASS = "cloud.google.com/compute-class"
NODE_POOL = "cloud.google.com/gke-nodepool"

# Podslice: labels and taints of the node pools that `node-pools` makes. No slash, which gcloud's formats cannot read.
POOL_OWNER = "podslice-owner"
POOL_CAPACITY = "podslice-capacity"

# GKE: annotations of Services, Gateways, service accounts and Pods.
LOAD_BALANCER_TYPE = "networking.gke.io/load-balancer-type"
LOAD_BALANCER_ADDRESSES = "networking.gke.io/load-balancer-ip-addresses"
CERTIFICATE_MAP = "networking.gke.io/certmap"
GCP_SERVICE_ACCOUNT = "iam.gke.io/gcp-service-account"
GCS_FUSE = "gke-gcsfuse/volumes"

# Kubernetes and JobSet: labels of a Job's Pods, and the annotation that keeps a Job in one node pool.
JOB_NAME = "batch.kubernetes.io/job-name"
JOB_CONTROLLER = "batch.kubernetes.io/controller-uid"
JOB_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
EXCLUSIVE_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"

# Kueue.
QUEUE = "kueue.x-k8s.io/queue-name"
ELASTIC_JOB = "kueue.x-k8s.io/elastic-job"
KUEUE_TOPOLOGY = "kueue.x-k8s.io/topology"
PROVISIONING_REQUEST = "kueue.x-k8s.io/provisioning-request"
MAX_RUN_DURATION = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"

# KubeRay: labels of what the operator makes. A replica of a worker group is a slice.
RAY_CLUSTER = "ray.io/cluster"
RAY_GROUP = "ray.io/group"
RAY_NODE_TYPE = "ray.io/node-type"
ORIGIN_NAME = "ray.io/originated-from-cr-name"
ORIGIN_KIND = "ray.io/originated-from-crd"
REPLICA_INDEX = "ray.io/worker-group-replica-index"
REPLICA_NAME = "ray.io/worker-group-replica-name"
HOST_INDEX = "ray.io/replica-host-index"

# Ray: labels of its nodes. The head of a slice is the worker whose id is 0.
NODE_ID = "ray.io/node-id"
NODE_GROUP = "ray.io/node-group"
ACCELERATOR_TYPE = "ray.io/accelerator-type"
TPU_POD_TYPE = "ray.io/tpu-pod-type"
TPU_TOPOLOGY = "ray.io/tpu-topology"
TPU_SLICE_NAME = "ray.io/tpu-slice-name"
TPU_WORKER_ID = "ray.io/tpu-worker-id"
