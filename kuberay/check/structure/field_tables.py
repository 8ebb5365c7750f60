"""Field names by type: KubeRay 1.7's own kinds, and the everyday fields of Kubernetes' core types.

The tables are what a check uses where it has no CRD schemas. Core fields that they lack are looked up in the Kubernetes
client's models, whose import takes a third of a second; without that package they are let pass.

A type is a line: its name, then `field:type`, with a `!` after a field that is required. Types are `str`, `int`, `num`,
`bool`, `any`, `quantity`, `intstr` (an integer or a string), `map` (of strings), `quantities` (a map of them), a choice
of words such as `v1|v2`, another type's name, or one of these in brackets for a list.
"""

import re
from functools import cache

_RAY = """
RayService apiVersion:str kind:str metadata:ObjectMeta spec!:RayServiceSpec status:any
RayCluster apiVersion:str kind:str metadata:ObjectMeta spec!:RayClusterSpec status:any
RayJob apiVersion:str kind:str metadata:ObjectMeta spec!:RayJobSpec status:any
RayCronJob apiVersion:str kind:str metadata:ObjectMeta spec!:RayCronJobSpec status:any
RayCronJobSpec schedule!:str timeZone:str suspend:bool jobTemplate!:RayJobSpec startingDeadlineSeconds:int
RayServiceSpec rayClusterConfig!:RayClusterSpec serveConfigV2:str serveService:Service excludeHeadPodFromServeSvc:bool
 upgradeStrategy:RayServiceUpgradeStrategy rayClusterDeletionDelaySeconds:int managedBy:str suspend:bool
 serviceUnhealthySecondThreshold:int deploymentUnhealthySecondThreshold:int
RayServiceUpgradeStrategy type:str clusterUpgradeOptions:ClusterUpgradeOptions
ClusterUpgradeOptions maxSurgePercent:int stepSizePercent!:int intervalSeconds!:int gatewayClassName!:str
RayJobSpec activeDeadlineSeconds:int backoffLimit:int rayClusterSpec:RayClusterSpec metadata:map clusterSelector:map
 submitterPodTemplate:PodTemplateSpec submitterConfig:SubmitterConfig managedBy:str deletionStrategy:DeletionStrategy
 entrypoint:str runtimeEnvYAML:str jobId:str submissionMode:str entrypointResources:str entrypointNumCpus:num
 entrypointNumGpus:num ttlSecondsAfterFinished:int preRunningDeadlineSeconds:int shutdownAfterJobFinishes:bool
 suspend:bool
SubmitterConfig backoffLimit:int
DeletionStrategy onSuccess:DeletionPolicy onFailure:DeletionPolicy deletionRules:[DeletionRule]
DeletionPolicy policy:DeleteCluster|DeleteWorkers|DeleteSelf|DeleteNone
DeletionRule policy!:DeleteCluster|DeleteWorkers|DeleteSelf|DeleteNone condition!:DeletionCondition
DeletionCondition jobStatus:SUCCEEDED|FAILED jobDeploymentStatus:Failed ttlSeconds:int
RayClusterSpec rayVersion:str headGroupSpec!:HeadGroupSpec workerGroupSpecs:[WorkerGroupSpec]
 enableInTreeAutoscaling:bool autoscalerOptions:AutoscalerOptions headServiceAnnotations:map
 gcsFaultToleranceOptions:GcsFaultToleranceOptions authOptions:AuthOptions upgradeStrategy:RayClusterUpgradeStrategy
 suspend:bool managedBy:str historyServerOptions:HistoryServerOptions networkPolicy:NetworkPolicyConfig
 tlsOptions:TLSOptions
RayClusterUpgradeStrategy type:Recreate|None
TLSOptions enabled:bool
AuthOptions mode:disabled|token secretName:str enableK8sTokenAuth:bool
GcsFaultToleranceOptions backend:redis|rocksdb redisAddress:str redisUsername:RedisCredential
 redisPassword:RedisCredential externalStorageNamespace:str storage:GcsEmbeddedStorage
RedisCredential value:str valueFrom:EnvVarSource
GcsEmbeddedStorage claimName:str size:quantity storageClassName:str accessModes:[str] subPath:str
 deletionPolicy:DeleteWithCluster|Retain
HistoryServerOptions collectorOptions:CollectorOptions
CollectorOptions image:str imagePullPolicy:str resources:ResourceRequirements env:[EnvVar]
NetworkPolicyConfig mode:DenyAll|DenyAllIngress|DenyAllEgress head:NetworkPolicyRules worker:NetworkPolicyRules
 workerGroups:[WorkerGroupNetworkPolicyRules]
NetworkPolicyRules ingressRules:[any] egressRules:[any]
WorkerGroupNetworkPolicyRules groupName!:str ingressRules:[any] egressRules:[any]
HeadGroupSpec template!:PodTemplateSpec headService:Service enableIngress:bool ingressOptions:IngressOptions
 resources:map labels:map rayStartParams:map serviceType:str
IngressOptions host:str path:str pathType:Exact|Prefix|ImplementationSpecific tls:[any]
WorkerGroupSpec groupName!:str template!:PodTemplateSpec replicas:int minReplicas:int maxReplicas:int numOfHosts:int
 rayStartParams:map resources:map labels:map idleTimeoutSeconds:int priority:int scaleStrategy:ScaleStrategy
 suspend:bool
ScaleStrategy workersToDelete:[str]
AutoscalerOptions version:v1|v2 idleTimeoutSeconds:int upscalingMode:Default|Aggressive|Conservative
 resources:ResourceRequirements image:str imagePullPolicy:str securityContext:SecurityContext env:[EnvVar]
 envFrom:[EnvFromSource] volumeMounts:[VolumeMount] command:[str] args:[str]
JobSet apiVersion:str kind:str metadata:ObjectMeta spec!:JobSetSpec status:any
JobSetSpec replicatedJobs:[ReplicatedJob] network:any successPolicy:any failurePolicy:any startupPolicy:any suspend:bool
 managedBy:str coordinator:any ttlSecondsAfterFinished:int volumeClaimPolicies:any
ReplicatedJob name!:str template!:JobTemplateSpec replicas:int groupName:str dependsOn:[any]
"""

_EVERYDAY = """
ObjectMeta name:str namespace:str labels:map annotations:map generateName:str finalizers:[str] creationTimestamp:any
PodTemplateSpec metadata:ObjectMeta spec!:PodSpec
PodSpec containers!:[Container] initContainers:[Container] volumes:[Volume] nodeSelector:map tolerations:[Toleration]
 affinity:Affinity restartPolicy:str serviceAccountName:str subdomain:str hostname:str imagePullSecrets:[any]
 securityContext:PodSecurityContext terminationGracePeriodSeconds:int hostNetwork:bool dnsPolicy:str
 priorityClassName:str schedulerName:str runtimeClassName:str serviceAccount:str activeDeadlineSeconds:int
Container name!:str image:str imagePullPolicy:str command:[str] args:[str] env:[EnvVar] envFrom:[EnvFromSource]
 ports:[ContainerPort] resources:ResourceRequirements volumeMounts:[VolumeMount] livenessProbe:Probe
 readinessProbe:Probe startupProbe:Probe securityContext:SecurityContext lifecycle:Lifecycle workingDir:str tty:bool
 stdin:bool restartPolicy:str terminationMessagePolicy:str terminationMessagePath:str
EnvVar name!:str value:str valueFrom:EnvVarSource
EnvVarSource fieldRef:any secretKeyRef:any configMapKeyRef:any resourceFieldRef:any fileKeyRef:any
EnvFromSource secretRef:any configMapRef:any prefix:str
ContainerPort containerPort!:int name:str protocol:str hostPort:int hostIP:str
ResourceRequirements limits:quantities requests:quantities claims:[any]
VolumeMount name!:str mountPath!:str readOnly:bool subPath:str mountPropagation:str subPathExpr:str
Volume name!:str emptyDir:EmptyDirVolumeSource configMap:any secret:any csi:any persistentVolumeClaim:any hostPath:any
 projected:any ephemeral:any
EmptyDirVolumeSource medium:str sizeLimit:quantity
Toleration key:str operator:str value:str effect:str tolerationSeconds:int
Affinity nodeAffinity:any podAffinity:any podAntiAffinity:any
Probe httpGet:HTTPGetAction exec:ExecAction tcpSocket:any grpc:any initialDelaySeconds:int periodSeconds:int
 timeoutSeconds:int failureThreshold:int successThreshold:int
HTTPGetAction path:str port!:intstr scheme:str host:str httpHeaders:[any]
ExecAction command:[str]
Lifecycle preStop:any postStart:any stopSignal:str
SecurityContext privileged:bool runAsUser:int runAsGroup:int runAsNonRoot:bool capabilities:any
 allowPrivilegeEscalation:bool readOnlyRootFilesystem:bool seccompProfile:any
PodSecurityContext runAsUser:int runAsGroup:int fsGroup:int runAsNonRoot:bool seccompProfile:any
Pod apiVersion:str kind:str metadata:ObjectMeta spec!:PodSpec status:any
Service apiVersion:str kind:str metadata:ObjectMeta spec:ServiceSpec status:any
ServiceSpec clusterIP:str selector:map ports:[ServicePort] type:str publishNotReadyAddresses:bool loadBalancerIP:str
 externalTrafficPolicy:str sessionAffinity:str
ServicePort port!:int targetPort:intstr name:str protocol:str nodePort:int appProtocol:str
Job apiVersion:str kind:str metadata:ObjectMeta spec!:JobSpec status:any
JobSpec template!:PodTemplateSpec completions:int parallelism:int completionMode:NonIndexed|Indexed backoffLimit:int
 activeDeadlineSeconds:int ttlSecondsAfterFinished:int suspend:bool podFailurePolicy:any managedBy:str
JobTemplateSpec metadata:ObjectMeta spec:JobSpec
CronJob apiVersion:str kind:str metadata:ObjectMeta spec!:CronJobSpec status:any
CronJobSpec schedule!:str jobTemplate!:JobTemplateSpec suspend:bool concurrencyPolicy:str timeZone:str
 successfulJobsHistoryLimit:int failedJobsHistoryLimit:int startingDeadlineSeconds:int
Deployment apiVersion:str kind:str metadata:ObjectMeta spec!:DeploymentSpec status:any
DeploymentSpec template!:PodTemplateSpec replicas:int selector!:any strategy:any progressDeadlineSeconds:int
 minReadySeconds:int revisionHistoryLimit:int
StatefulSet apiVersion:str kind:str metadata:ObjectMeta spec!:StatefulSetSpec status:any
StatefulSetSpec template!:PodTemplateSpec replicas:int selector!:any serviceName:str podManagementPolicy:str
 updateStrategy:any volumeClaimTemplates:[any]
"""


def _read(table: str) -> dict[str, dict[str, tuple[str, bool]]]:
    types = {}
    for line in re.sub(r"\n ", " ", table.strip()).splitlines():
        name, *fields = line.split()
        pairs = (field.split(":", 1) for field in fields)
        types[name] = {key.removesuffix("!"): (kind, key.endswith("!")) for key, kind in pairs}
    return types


_RAY_TYPES = _read(_RAY)
_CORE_TYPES = _read(_EVERYDAY)
_QUANTITIES = {"limits", "requests", "overhead", "capacity"}


def known_type(name: str) -> bool:
    return name in _RAY_TYPES or name in _CORE_TYPES


def fields_of(name: str) -> dict[str, tuple[str, bool]]:
    """Fields of a type that the tables have: each with its type and whether it is required."""
    return _RAY_TYPES.get(name) or _CORE_TYPES.get(name) or {}


def types_with(field: str) -> list[str]:
    """Types that have a field of this name: where a field in the wrong place may belong."""
    return [name for types in (_RAY_TYPES, _CORE_TYPES) for name, fields in types.items() if field in fields]


@cache
def all_fields_of(name: str) -> dict[str, tuple[str, bool]] | None:
    """`fields_of` with what the Kubernetes client knows beside; None where a type's fields are not all known."""
    own = fields_of(name)
    if name in _RAY_TYPES:
        return own
    try:
        from kubernetes.client import models
    except ImportError:
        return None
    model = getattr(models, f"V1{name}", None)
    if model is None:
        return None
    more = {wire: (_type_of(wire, model.openapi_types[python]), False) for python, wire in model.attribute_map.items()}
    return {**more, **own}


def _type_of(field: str, spelled: str) -> str:
    """The client's `list[V1Container]` in the words of the tables."""
    if field in _QUANTITIES and spelled.lower().startswith("dict"):
        return "quantities"
    if match := re.fullmatch(r"(?i:list)\[(.+)\]", spelled):
        return f"[{_type_of(field, match.group(1))}]"
    if re.fullmatch(r"(?i:dict)[\[(]str, str[\])]", spelled):
        return "map"
    scalar = {"int": "int", "bool": "bool", "str": "str", "float": "num"}.get(spelled)
    if scalar == "str" and ("size" in field.lower() or field == "divisor"):
        return "quantity"
    return scalar or (spelled[2:] if spelled.startswith("V1") else "any")
