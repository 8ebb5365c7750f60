"""How a replica's devices share a model: DP ranks ("data") are copies of it, each split over some devices ("tensor").

With more devices in a rank, each device reads fewer weights in a step. With more ranks, devices exchange less, and
where a model has fewer key/value heads than devices, fewer devices hold duplicate keys and values. Which matters more
depends on the model, its batch and the slice.
"""

from dataclasses import dataclass

from ray_configs.llm import EngineConfig


@dataclass(frozen=True)
class Layout:
    """`data` DP ranks, each a copy of the model over `tensor` devices."""

    data: int
    tensor: int

    def of_dp_rank(self, config: EngineConfig, hosts: int = 1) -> EngineConfig:
        """The config of one DP rank, with its share of the batch, of kept states, of its hosts' memory and devices."""
        return config.model_copy(
            update={
                "max_batch_size": -(-config.max_batch_size // self.data),
                "prefix_states": config.prefix_states and -(-config.prefix_states // self.data),
                "prefix_cache_host_gib": config.prefix_cache_host_gib / -(-self.data // hosts),
                "data_parallel": 1,
                "tensor_parallel": self.tensor,
            }
        )

    def hosts_of(self, dp_rank: int, devices: "Devices") -> range:
        """The ranks of the hosts that have a DP rank's devices."""
        return range(dp_rank * self.tensor // devices.of_host, -(-(dp_rank + 1) * self.tensor // devices.of_host))


@dataclass(frozen=True)
class Devices:
    """The devices that a model can be laid out over."""

    count: int
    hosts: int = 1
    platform: str = "tpu"

    @property
    def of_host(self) -> int:
        return self.count // self.hosts


def misfit(layout: Layout, devices: Devices) -> str:
    """Why the layout does not fit the devices; empty if it does."""
    asked = layout.data * layout.tensor
    product = f"data_parallel x tensor_parallel is {layout.data} x {layout.tensor} = {asked}"
    if devices.hosts > 1 and asked != devices.count:
        return (
            f"{product}, but the slice has {devices.count} devices on {devices.hosts} hosts, and each of them "
            "must take part; leave either or both unset"
        )
    if asked > devices.count:
        return f"{product}, but this host has {devices.count} {devices.platform} devices"
    if layout.tensor % devices.of_host and devices.of_host % layout.tensor:
        return (
            f"tensor_parallel {layout.tensor} does not fit hosts of {devices.of_host} devices: a DP rank takes whole "
            "hosts, or an even part of one; choose a multiple or a divisor"
        )
    return ""
