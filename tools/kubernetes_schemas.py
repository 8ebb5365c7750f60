"""Makes kuberay/check/structure/schemas.json, the pruned schemas that `check` validates manifests with.

    python -m tools.kubernetes_schemas FOLDER > kuberay/check/structure/schemas.json

FOLDER has rayclusters.v1.json, rayservices.v1.json and rayjobs.v1.json, KubeRay's CRDs as the operator installs them.
Kubernetes' own kinds come from the package kubernetes-validate, Serve's config from the installed Ray. Pruned means:
without descriptions, defaults, status and validation rules, and with each type written once. Unknown fields are
refused, as kubectl's validation does.
"""

import json
import sys
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

KUBERNETES = "v1.36.0"
"""The Kubernetes version whose Pods are in KubeRay 1.7's CRDs."""
KINDS = {
    "/Pod": "io.k8s.api.core.v1.Pod",
    "/Service": "io.k8s.api.core.v1.Service",
    "batch/Job": "io.k8s.api.batch.v1.Job",
    "batch/CronJob": "io.k8s.api.batch.v1.CronJob",
    "apps/Deployment": "io.k8s.api.apps.v1.Deployment",
    "apps/StatefulSet": "io.k8s.api.apps.v1.StatefulSet",
    "apps/DaemonSet": "io.k8s.api.apps.v1.DaemonSet",
    "apps/ReplicaSet": "io.k8s.api.apps.v1.ReplicaSet",
}
QUANTITY = r"^[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?$"
LOOSE: dict[str, Schema] = {
    "Quantity": {"type": ["string", "number"], "pattern": QUANTITY, "title": "a quantity such as 4 or 16Gi"},
    "IntOrString": {"type": ["string", "integer"], "title": "an integer or a string"},
    "Time": {},
    "MicroTime": {},
    "FieldsV1": {},
}
PORT = {"minimum": 1, "maximum": 65535}
COUNT = {"minimum": 0}
LABEL = {
    "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?$",
    "title": "label value: at most 63 letters, digits, - _ . with a letter or digit at both ends",
}
PORT_NAME = {
    "pattern": "^(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$",
    "title": "port name: at most 15 small letters, digits and hyphens",
}
FIELDS = ("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations")
FIELDS += (
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
FIELD = {
    "pattern": rf"^({'|'.join(FIELDS).replace('.', '[.]')})(\['[^']+'\])?$",
    "title": "field that a variable can have, such as metadata.name or status.podIP",
    "examples": FIELDS,
}
REFUSED_LATER: dict[str, Schema] = {
    "PodSpec.restartPolicy": {"enum": ["Always", "OnFailure", "Never"]},
    "PodSpec.dnsPolicy": {"enum": ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]},
    "PodSpec.terminationGracePeriodSeconds": COUNT,
    "PodSpec.activeDeadlineSeconds": COUNT,
    "Container.imagePullPolicy": {"enum": ["IfNotPresent", "Always", "Never"]},
    "Container.terminationMessagePolicy": {"enum": ["File", "FallbackToLogsOnError"]},
    "ContainerPort.protocol": {"enum": ["TCP", "UDP", "SCTP"]},
    "ContainerPort.containerPort": PORT,
    "ContainerPort.name": PORT_NAME,
    "HTTPGetAction.port": PORT,
    "TCPSocketAction.port": PORT,
    "ObjectFieldSelector.fieldPath": FIELD,
    "Toleration.operator": {"enum": ["Exists", "Equal"]},  # Lt and Gt have a feature gate that is off
    "Toleration.effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
    **{f"Probe.{key}Seconds": COUNT for key in ("initialDelay", "period", "timeout")},
    "Probe.failureThreshold": COUNT,
    **{f"{kind}KeySelector.{key}": {"minLength": 1} for kind in ("Secret", "ConfigMap") for key in ("name", "key")},
}
"""Constraints that the API server applies only to Pods: it stores a RayCluster's templates unchecked, and the operator
then fails to create Pods from them, again and again."""
CHOICES = {
    "Probe": (1, ("httpGet", "exec", "tcpSocket", "grpc")),
    "LifecycleHandler": (1, ("exec", "httpGet", "sleep", "tcpSocket")),
    "EnvVarSource": (1, ()),
    "EnvFromSource": (1, ("secretRef", "configMapRef")),
    "EnvVar": (0, ("value", "valueFrom")),
    "Volume": (0, ()),
}
"""Types with mutually exclusive fields: (how many are required, which); an empty tuple means any field but the name."""
NAMED = {
    "rayClusterConfig": "RayClusterSpec",
    "rayClusterSpec": "RayClusterSpec",
    "headGroupSpec": "HeadGroupSpec",
    "workerGroupSpecs": "WorkerGroupSpec",
    "autoscalerOptions": "AutoscalerOptions",
}
"""KubeRay types that several kinds share, or to which a misplaced field may belong."""
NAMESAKES = {"serveService": "Service", "headService": "Service"}
NAMESAKES |= dict.fromkeys(("template", "submitterPodTemplate"), "PodTemplateSpec")
"""Fields of Kubernetes' own types."""


SERVE = {
    "ServeDeploySchema": "a Serve config",
    "ServeApplicationSchema": "an application",
    "DeploymentSchema": "a deployment",
    "HTTPOptionsSchema": "http_options",
    "gRPCOptionsSchema": "grpc_options",
    "RayActorOptionsSchema": "ray_actor_options",
    "AutoscalingConfig": "autoscaling_config",
}
"""Types of Ray Serve's config, and what a message calls them."""


def _closed(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, "additionalProperties": False, **needed}


def _object(spec: str) -> Schema:
    top = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": _ref("ObjectMeta"), "status": {}}
    return _closed({**top, "spec": _ref(spec)}, ("spec",))


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _kubernetes() -> dict[str, Schema]:
    """All types that the kinds refer to, by short name."""
    import kubernetes_validate

    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"{KUBERNETES}-local-strict"
    known = json.loads((folder / "_definitions.json").read_text())["$defs"]
    found: dict[str, Schema] = {}
    left = [*KINDS.values(), "io.k8s.api.batch.v1.JobTemplateSpec"]

    def pruned(schema: Schema) -> Schema:
        if "$ref" in schema:
            left.append(schema["$ref"].rpartition("/")[2])
            return _ref(left[-1].rpartition(".")[2])
        kind = schema.get("type")
        kind = next((each for each in kind if each != "null"), None) if isinstance(kind, list) else kind
        if "properties" in schema:
            shown = {key: {} if key == "status" else pruned(child) for key, child in schema["properties"].items()}
            return _closed(shown, tuple(schema.get("required", ())))
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), dict):
                return {"type": kind, key: pruned(schema[key])}
        return {"type": kind} if kind and kind != "object" else {}

    while left:
        full = left.pop()
        name = full.rpartition(".")[2]
        if name not in found:
            found[name] = LOOSE[name] if name in LOOSE else pruned(known[full])
    for name in ("PodTemplateSpec", *(kind.rpartition("/")[2] for kind in KINDS if kind != "/Service")):
        found[name]["required"] = ["spec"]  # which Kubernetes only says by refusing what follows from its absence
    return found


def _ray(folder: Path, types: dict[str, Schema]) -> None:
    """Adds KubeRay's kinds to `types`, with references to the types there where they are the same."""
    same = {
        frozenset(schema["properties"]): name
        for name, schema in types.items()
        if len(schema.get("properties", ())) > 2 and "status" not in schema["properties"]
    }

    def pruned(schema: Schema, name: str = "") -> Schema:
        if schema.get("x-kubernetes-int-or-string"):
            return _ref("Quantity" if "pattern" in schema else "IntOrString")
        properties = schema.get("properties")
        if properties and not schema.get("x-kubernetes-preserve-unknown-fields"):
            if known := NAMESAKES.get(name) or same.get(frozenset(properties)):
                return _ref(known)
            # The API server fills defaults in before it looks at what is required.
            required = [key for key in schema.get("required", ()) if "default" not in properties.get(key, {})]
            made = _closed({key: pruned(child, key) for key, child in properties.items()}, tuple(required))
            if name in NAMED:
                types[NAMED[name]] = made
                return _ref(NAMED[name])
            return made
        kind = schema.get("type")
        if kind == "array":
            return {"type": kind, "items": pruned(schema.get("items", {}), name)}
        if isinstance(more := schema.get("additionalProperties"), dict):
            return {"type": kind, "additionalProperties": pruned(more)}
        words = {"enum": schema["enum"]} if "enum" in schema else {}
        return {"type": kind, **words} if kind and kind != "object" else {}

    for kind in ("RayCluster", "RayService", "RayJob"):
        schema = json.loads((folder / f"{kind.lower()}s.v1.json").read_text())["openAPIV3Schema"]
        made = pruned(schema["properties"]["spec"])
        types[f"{kind}Spec"] = made if "$ref" not in made else types[made["$ref"].rpartition("/")[2]]
        types[kind] = _object(f"{kind}Spec")


def _serve(types: dict[str, Schema]) -> None:
    """Adds Ray Serve's types. Anything goes for a number or a string: Serve takes "2" for 2."""
    from ray.serve.schema import ServeDeploySchema

    top = ServeDeploySchema.model_json_schema()
    known = {**top["$defs"], "ServeDeploySchema": top}

    def pruned(schema: Schema) -> Schema:
        name = schema.get("$ref", "").rpartition("/")[2]
        if name in SERVE:
            return _ref(name)
        if name:
            return pruned(known[name])
        if "anyOf" in schema:
            choices = [pruned(each) for each in schema["anyOf"] if each.get("type") != "null"]
            one = choices[0] if len(choices) == 1 else {}
            return one if {} in choices else next((each for each in choices if "$ref" in each), one)
        if schema.get("type") == "array":
            return {"type": "array", "items": pruned(schema.get("items", {}))}
        words = schema.get("enum", ())
        if words and all(isinstance(word, str) for word in words):
            return {"type": "string", "enum": words}
        return {"type": "object"} if schema.get("type") == "object" else {}

    for name, title in SERVE.items():
        properties = {key: pruned(child) for key, child in known[name]["properties"].items()}
        if name == "ServeApplicationSchema":  # of one application alone, which a config of several may not have
            del properties["host"], properties["port"]
        required = () if known[name] is top else known[name].get("required", ())  # serve-config says it of the whole
        types[name] = {**_closed(properties, tuple(required)), "title": title}


def schemas(folder: Path) -> Schema:
    """`$defs` maps names to types, `kinds` each group/kind to the name of its type."""
    types = _kubernetes()
    _ray(folder, types)
    text, number, anything = {"type": "string"}, {"type": "integer"}, {}
    flag = {"type": "boolean"}
    # Of these two no schema is at hand: RayCronJob is behind a feature gate, JobSet has an operator of its own.
    cron = {"schedule": text, "timeZone": text, "suspend": flag, "jobTemplate": _ref("RayJobSpec")}
    types["RayCronJobSpec"] = _closed({**cron, "startingDeadlineSeconds": number}, ("schedule", "jobTemplate"))
    replicated = {"name": text, "template": _ref("JobTemplateSpec"), "replicas": number, "groupName": text}
    types["ReplicatedJob"] = _closed({**replicated, "dependsOn": {"type": "array"}}, ("name", "template"))
    policies = ("network", "successPolicy", "failurePolicy", "startupPolicy", "coordinator", "volumeClaimPolicies")
    jobs = {"replicatedJobs": {"type": "array", "items": _ref("ReplicatedJob")}, "suspend": flag, "managedBy": text}
    others = {"ttlSecondsAfterFinished": number, **dict.fromkeys(policies, anything)}
    types["JobSetSpec"] = _closed({**jobs, **others})
    templates = dict.fromkeys(("leaderTemplate", "workerTemplate"), _ref("PodTemplateSpec"))
    types["LeaderWorkerSetSpec"] = {"properties": {"leaderWorkerTemplate": {"properties": templates}}}
    _refused_later(types)
    _serve(types)
    for kind in ("RayCronJob", "JobSet", "LeaderWorkerSet"):
        types[kind] = _object(f"{kind}Spec")
    ray = {f"ray.io/{kind}": kind for kind in ("RayCluster", "RayService", "RayJob", "RayCronJob")}
    core = {kind: kind.rpartition("/")[2] for kind in KINDS}
    return {
        "kinds": {
            **core,
            **ray,
            "ServeDeploySchema": "ServeDeploySchema",
            "jobset.x-k8s.io/JobSet": "JobSet",
            "leaderworkerset.x-k8s.io/LeaderWorkerSet": "LeaderWorkerSet",
        },
        "$defs": types,
    }


def _refused_later(types: dict[str, Schema]) -> None:
    for place, limits in REFUSED_LATER.items():
        name, _, field = place.partition(".")
        types[name]["properties"][field] = types[name]["properties"][field] | limits
    types["PodSpec"]["properties"]["nodeSelector"]["additionalProperties"] |= LABEL
    for name in ("SecretKeySelector", "ConfigMapKeySelector"):
        types[name]["required"] = ["name", "key"]
    for name, (least, fields) in CHOICES.items():
        chosen = fields or sorted(types[name]["properties"].keys() - {"name"})
        types[name]["oneField"] = {"least": least, "of": list(chosen)}


def written(schema: Schema) -> str:
    """JSON with one line per type, so that diffs are small."""
    types = ",\n".join(
        f'"{name}": {json.dumps(schema["$defs"][name], sort_keys=True)}' for name in sorted(schema["$defs"])
    )
    return f'{{"kinds": {json.dumps(schema["kinds"], sort_keys=True)},\n"$defs": {{\n{types}\n}}}}\n'


if __name__ == "__main__":
    sys.stdout.write(written(schemas(Path(sys.argv[1]))))
