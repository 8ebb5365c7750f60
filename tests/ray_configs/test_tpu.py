"""TPU slices: the table against figures written down a second time, against Ray's own tables, and its refusals."""

import itertools
import math
import re
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from ray_configs.tpu import GENERATIONS, SliceField, TpuSlice, every_slice

SLICES = list(every_slice())
FOR_RAY = [slice for slice in SLICES if slice.ray_refusal is None]

# slice: chips, hosts, chips a host, machine type, accelerator label, Ray's pod type, HBM of the slice in GiB
FACTS = {
    "v3:2x2": (4, 1, 4, "ct3-hightpu-4t", "tpu-v3-device", "v3-8", 128),
    "v3:4x4": (16, 4, 4, "ct3p-hightpu-4t", "tpu-v3-slice", "v3-32", 512),
    "v3:32x32": (1024, 256, 4, "ct3p-hightpu-4t", "tpu-v3-slice", "v3-2048", 32768),
    "v4:2x2x1": (4, 1, 4, "ct4p-hightpu-4t", "tpu-v4-podslice", "v4-8", 128),
    "v4:2x2x2": (8, 2, 4, "ct4p-hightpu-4t", "tpu-v4-podslice", "v4-16", 256),
    "v4:4x4x8": (128, 32, 4, "ct4p-hightpu-4t", "tpu-v4-podslice", "v4-256", 4096),
    "v5e:1x1": (1, 1, 1, "ct5lp-hightpu-1t", "tpu-v5-lite-podslice", "v5litepod-1", 16),
    "v5e:2x2": (4, 1, 4, "ct5lp-hightpu-4t", "tpu-v5-lite-podslice", "v5litepod-4", 64),
    "v5e:2x4:8t": (8, 1, 8, "ct5lp-hightpu-8t", "tpu-v5-lite-podslice", "v5litepod-8", 128),
    "v5e:2x4:4t": (8, 2, 4, "ct5lp-hightpu-4t", "tpu-v5-lite-podslice", "v5litepod-8", 128),
    "v5e:4x8": (32, 8, 4, "ct5lp-hightpu-4t", "tpu-v5-lite-podslice", "v5litepod-32", 512),
    "v5e:16x16": (256, 64, 4, "ct5lp-hightpu-4t", "tpu-v5-lite-podslice", "v5litepod-256", 4096),
    "v5p:2x2x1": (4, 1, 4, "ct5p-hightpu-4t", "tpu-v5p-slice", "v5p-8", 380),
    "v5p:2x4x4": (32, 8, 4, "ct5p-hightpu-4t", "tpu-v5p-slice", "v5p-64", 3040),
    "v5p:16x16x24": (6144, 1536, 4, "ct5p-hightpu-4t", "tpu-v5p-slice", "v5p-12288", 583680),
    "v6e:1x1": (1, 1, 1, "ct6e-standard-1t", "tpu-v6e-slice", "v6e-1", 32),
    "v6e:2x4:8t": (8, 1, 8, "ct6e-standard-8t", "tpu-v6e-slice", "v6e-8", 256),
    "v6e:2x4:4t": (8, 2, 4, "ct6e-standard-4t", "tpu-v6e-slice", "v6e-8", 256),
    "v6e:4x4": (16, 4, 4, "ct6e-standard-4t", "tpu-v6e-slice", "v6e-16", 512),
    "7x:1x1x1": (1, 1, 1, "tpu7x-standard-1t", "tpu7x", "v7x-2", 192),
    "7x:2x2x1": (4, 1, 4, "tpu7x-standard-4t", "tpu7x", "v7x-8", 768),
    "7x:4x4x4": (64, 16, 4, "tpu7x-standard-4t", "tpu7x", "v7x-128", 12288),
}

# one chip: bf16 TFLOP/s, int8 TOP/s, HBM GiB, HBM GB/s
PEAKS = {
    "v3": (123, None, 32, 900),
    "v4": (275, 275, 32, 1200),
    "v5e": (197, 394, 16, 819),
    "v5p": (459, 918, 95, 2765),
    "v6e": (918, 1836, 32, 1638),
    "7x": (2307, None, 192, 7380),
}

# machine type: vCPUs, memory in GB
MACHINES = {
    "ct3-hightpu-4t": (96, 340),
    "ct3p-hightpu-4t": (48, 340),
    "ct4p-hightpu-4t": (240, 407),
    "ct5lp-hightpu-1t": (24, 48),
    "ct5lp-hightpu-4t": (112, 192),
    "ct5lp-hightpu-8t": (224, 384),
    "ct5p-hightpu-4t": (208, 448),
    "ct6e-standard-1t": (44, 176),
    "ct6e-standard-4t": (180, 720),
    "ct6e-standard-8t": (180, 1440),
    "tpu7x-standard-4t": (224, 960),
}


class Holder(BaseModel):
    slice: SliceField


def parsed(text: str) -> TpuSlice:
    return Holder(slice=text).slice


@pytest.mark.parametrize(("text", "facts"), FACTS.items(), ids=FACTS)
def test_facts_of_a_slice(text: str, facts: tuple[Any, ...]) -> None:
    slice = parsed(text)
    chips, hosts, chips_per_host, machine, accelerator, pod_type, hbm = facts
    topology = text.split(":")[1]
    assert (slice.chips, slice.hosts, slice.chips_per_host) == (chips, hosts, chips_per_host)
    assert (slice.machine_type, slice.machine.name) == (machine, machine)
    assert slice.single_host == (hosts == 1)
    assert slice.hbm_gib == hbm
    assert slice.ray_pod_type == pod_type
    assert slice.ray_head_resource == f"TPU-{pod_type}-head"
    assert slice.node_selectors == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    assert slice.ray_labels == {
        "ray.io/accelerator-type": "TPU-" + pod_type.split("-")[0].upper(),
        "ray.io/tpu-pod-type": pod_type,
        "ray.io/tpu-topology": topology,
    }


@pytest.mark.parametrize(("name", "peaks"), PEAKS.items(), ids=PEAKS)
def test_peaks_of_a_chip(name: str, peaks: tuple[Any, ...]) -> None:
    facts = GENERATIONS[name]
    assert (facts.bf16_tflops, facts.int8_tops, facts.hbm_gib, facts.hbm_gb_per_s) == peaks


def test_machine_types() -> None:
    machines = {machine.name: machine for facts in GENERATIONS.values() for machine in facts.machines}
    assert MACHINES.items() <= {name: (m.vcpus, m.memory_gb) for name, m in machines.items()}.items()
    assert set(machines) - set(MACHINES) == {"tpu7x-standard-1t"}  # no vCPUs are published for it
    assert [name for name, m in machines.items() if not m.dynamic_workload_scheduler] == ["ct4p-hightpu-4t"]
    assert all(machine.suffix == f"{machine.chips}t" for machine in machines.values())


def test_the_table_is_whole() -> None:
    assert set(GENERATIONS) == set(PEAKS)
    assert [name for name, facts in GENERATIONS.items() if facts.workload_policy] == ["7x"]
    for slice in SLICES:
        assert slice.hosts * slice.chips_per_host == slice.chips, slice
        assert slice.chips == math.prod(map(int, slice.topology.split("x"))), slice
        assert slice.single_host == (slice.machine.single_host == slice.topology), slice
        axes = [int(axis) for axis in slice.topology.split("x")]
        assert axes == sorted(axes) or slice.topology == "2x2x1", slice


@pytest.mark.parametrize(("name", "cubes"), [("v4", 64), ("v5p", 140), ("7x", 144)])
def test_tori_are_boxes_of_whole_cubes(name: str, cubes: int) -> None:
    """General topologies are AxBxC, A <= B <= C, all multiples of four, up to as many 4x4x4 cubes as a pod may join."""
    large = {topology for topology in GENERATIONS[name].multi_host if not topology.startswith("2x")}
    axes = range(4, 4 * cubes + 1, 4)
    expected = {
        f"{a}x{b}x{c}"
        for a in axes
        for b in range(a, 64 * cubes // (a * 4) + 1, 4)
        for c in range(b, 64 * cubes // (a * b) + 1, 4)
    }
    assert large == expected


class TestRay:
    """What Ray itself, and its autoscaler for KubeRay, say of the same slices."""

    @pytest.mark.parametrize("name", GENERATIONS)
    def test_topologies_are_rays(self, name: str) -> None:
        from ray._private.accelerators.tpu import VALID_TPU_TOPOLOGY, VALID_TPU_TYPES

        facts = GENERATIONS[name]
        assert facts.ray_name in VALID_TPU_TYPES
        assert facts.ray_topologies == VALID_TPU_TOPOLOGY[facts.ray_name]

    def test_pod_types_are_what_ray_infers(self) -> None:
        from ray._private.accelerators.tpu import infer_tpu_pod_type_from_topology

        for slice in SLICES:
            assert infer_tpu_pod_type_from_topology(slice.topology, slice.facts.ray_name) == slice.ray_pod_type
            assert infer_tpu_pod_type_from_topology(slice.topology, slice.ray_labels["ray.io/accelerator-type"]) == (
                slice.ray_pod_type
            )

    def test_node_selectors_are_what_the_autoscaler_reads(self) -> None:
        from ray.autoscaler._private.kuberay.utils import tpu_node_selectors_to_type

        for slice in FOR_RAY:
            assert tpu_node_selectors_to_type(slice.topology, slice.accelerator) == slice.ray_pod_type, slice
        for slice in SLICES:
            known = tpu_node_selectors_to_type(slice.topology, slice.accelerator) is not None
            assert known == slice.facts.autoscales, slice

    def test_hosts_are_of_the_size_that_ray_takes_for_granted_or_one_must_say(self) -> None:
        """Where Ray's rule gives another size, `chips_per_vm` has to be passed on."""
        from ray._private.accelerators.tpu import get_chips_per_host

        otherwise = [str(s) for s in FOR_RAY if get_chips_per_host(s.topology, s.facts.ray_name) != s.chips_per_host]
        assert otherwise == ["v5e:2x4:4t", "v6e:2x4:4t"]

    @pytest.mark.parametrize("name", GENERATIONS)
    def test_a_node_labels_itself_as_the_slice_says(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The environment is what GKE's device plugin and webhook give the Pod of a slice's first host."""
        from ray._private.accelerators.tpu import TPUAcceleratorManager as manager

        for slice in (slice for slice in SLICES if slice.generation == name):
            google = slice.ray_pod_type.replace("v7x", "tpu7x")
            for variable, value in {
                "TPU_NAME": "group-0",
                "TPU_WORKER_ID": "0",
                "TPU_TOPOLOGY": slice.topology,
                "TPU_ACCELERATOR_TYPE": google,
            }.items():
                monkeypatch.setenv(variable, value)
            labels = {"ray.io/accelerator-type": manager.get_current_node_accelerator_type()}
            labels |= manager.get_current_node_accelerator_labels()
            assert slice.ray_labels.items() <= labels.items()
            assert manager.get_current_node_additional_resources() == {"group-0": 1, slice.ray_head_resource: 1}

    def test_refusals(self) -> None:
        refused = {slice.generation for slice in SLICES if slice.ray_refusal is not None}
        assert refused == {"v3", "v4", "v5p", "7x"}
        assert all(slice.ray_refusal for slice in SLICES if slice.generation == "v3")
        assert "tpu-v3-slice" in (TpuSlice("v3", "4x4").ray_refusal or "")
        assert re.search(
            r"Ray does not know 7x 1x1x1; it knows 2x2x1, 2x2x2", TpuSlice("7x", "1x1x1").ray_refusal or ""
        )
        assert TpuSlice("v5e", "4x8").ray_refusal is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("v5e", "3x3"), "v5e has no topology '3x3'; choose one of 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"),
        (("v5e", "2x8"), "no topology '2x8'; choose one of 1x1"),  # Ray knows it, GKE does not sell it
        (("v5e", "8x4"), "4x8"),
        (("v4", "4x8x4"), "4x4x8"),
        (("v4", "2x2"), "v4 has no topology '2x2'; choose one of 2x2x1, 2x2x2"),
        (("7x", "4x4"), "choose one of 1x1x1, 2x2x1"),
        (("v5e", ""), "choose one of 1x1"),
        (("v5e", "4X8"), "choose one of 1x1"),
        (("v5e", "2x4"), "write v5e:2x4:8t (1 x ct5lp-hightpu-8t) or v5e:2x4:4t (2 x ct5lp-hightpu-4t)"),
        (("v6e", "2x4"), "write v6e:2x4:8t (1 x ct6e-standard-8t) or v6e:2x4:4t (2 x ct6e-standard-4t)"),
        (("v5e", "4x8", "ct6e-standard-4t"), "does not make a v5e slice of 4x8; choose ct5lp-hightpu-4t"),
        (("v5e", "4x8", "8t"), "machine type '8t' does not make a v5e slice of 4x8; choose ct5lp-hightpu-4t"),
        (("v5e", "2x4", "1t"), "choose ct5lp-hightpu-8t or ct5lp-hightpu-4t"),
        (("v9", "2x2"), "no TPU generation 'v9'; choose one of v3, v4, v5e, v5p, v6e, 7x"),
        (("v5litepod", "4x8"), "no TPU generation 'v5litepod'; choose one of v3, v4, v5e"),
        (("V5E", "4x8"), "no TPU generation 'V5E'"),
        (("v5e",), "topology"),
        ((), "generation"),
    ],
)
def test_an_impossible_slice_is_refused_with_the_choices(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        TpuSlice(*arguments)


@pytest.mark.parametrize("name", ["v4", "v5p", "7x"])
def test_long_lists_of_choices_are_cut(name: str) -> None:
    with pytest.raises(ValidationError, match=r"and \d+ larger ones, up to ") as raised:
        TpuSlice(name, "5x5x5")
    assert len(raised.value.errors()[0]["msg"]) < 300


@pytest.mark.parametrize("text", ["", ":", "v5e", "v5e:2x4:8t:1", "v5e 4x8"])
def test_another_spelling_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValidationError, match=r"v5e:4x8|choose one of v3"):
        parsed(text)


def test_an_unknown_keyword_is_an_error_that_names_it() -> None:
    with pytest.raises(ValidationError, match="machine_typ\n"):
        TpuSlice("v5e", "4x8", machine_typ="4t")
    with pytest.raises(ValidationError, match="chips"):
        Holder.model_validate({"slice": {"generation": "v5e", "topology": "4x8", "chips": 3}})


def test_short_form_round_trip() -> None:
    texts = [str(slice) for slice in SLICES]
    assert [parsed(text) for text in texts] == SLICES
    assert len(set(texts)) == len(SLICES)
    for slice in SLICES:
        assert Holder(slice=slice).model_dump() == {"slice": str(slice)}
        assert Holder.model_validate_json(Holder(slice=slice).model_dump_json()).slice == slice
        assert TpuSlice.model_validate(slice.model_dump()) == slice


def test_the_machine_is_in_the_short_form_only_where_it_must_be() -> None:
    with_machine = {str(slice) for slice in SLICES if str(slice).count(":") == 2}
    assert with_machine == {f"{name}:2x4:{size}" for name, size in itertools.product(("v5e", "v6e"), ("8t", "4t"))}


def test_frozen_hashable_and_equal_however_the_machine_was_written() -> None:
    short, full = TpuSlice("v5e", "2x4", "8t"), TpuSlice("v5e", "2x4", "ct5lp-hightpu-8t")
    assert short == full == TpuSlice(generation="v5e", topology="2x4", machine_type="8t")
    assert len({short, full, TpuSlice("v5e", "2x4", "4t")}) == 2
    assert TpuSlice("v5e", "4x8") == TpuSlice("v5e", "4x8", "4t")
    with pytest.raises(ValidationError, match="frozen"):
        short.topology = "4x4"
    assert len(set(SLICES)) == len(SLICES)
