"""A decoder's architecture: what it has once, and a `LayerSpec` for each layer.

One decoder serves all families; `families` makes an architecture of a checkpoint's config.json.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from apps.llm.engine.model.layers import Attention, DeltaNet, Experts, LayerSpec, Norm
from apps.llm.engine.model.split import Split
from apps.llm.engine.model.towers.spec import Tower


@dataclass(frozen=True)
class Architecture:
    """The decoder's dimensions and options."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int  # as config.json has it, whether or not a layer has such a network
    layers: tuple[LayerSpec, ...]
    max_position: int
    norm: Norm  # of the last layer's output
    tied_embeddings: bool
    sinusoids: bool = False  # added to the embeddings
    scaled_embeddings: bool = False  # embeddings times sqrt(hidden_size) (Gemma)
    embedding_norm: Norm | None = None  # of the embeddings, without a weight (Muse Glimmer)
    head_bias: bool = False  # on the logits
    logit_scale: float = 1.0  # multiplies the logits, before they are capped
    final_softcap: float | None = None  # cap * tanh(logits / cap)
    eos_token_ids: tuple[int, ...] = ()
    labels: int = 0  # of a classifier, whose matrix takes the place of the head's first rows; 0: the head is a head
    answers: tuple[str, str] | None = None  # the words for no and yes, of a model that judges with one of them
    tower: Tower | None = None  # for images; None: it reads text alone

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def input_width(self) -> int:
        """Of the further embeddings that each layer takes (Gemma 4); 0: none."""
        inputs = self.layers[0].inputs
        return inputs.width if inputs else 0

    @cached_property
    def cache_of(self) -> tuple[int, ...]:
        """The layer whose cache each layer uses: its own, or the last one before it that its mixer may read.

        Raises:
            ValueError: there is no such layer.
        """
        found = []
        for number, mixer in enumerate(spec.mixer for spec in self.layers):
            readable = [other for other in range(number) if mixer.may_read(self.layers[other].mixer)]
            if not mixer.owns_cache and not readable:
                raise ValueError(f"layer {number} has no cache of its own, and no layer before it has one for it")
            found.append(number if mixer.owns_cache else readable[-1])
        return tuple(found)

    @property
    def attention(self) -> list[Attention]:
        """The layers' attention, each kind once."""
        return list(dict.fromkeys(spec.mixer for spec in self.layers if isinstance(spec.mixer, Attention)))

    @property
    def sees_both_ways(self) -> bool:
        """Whether an image's tokens attend to those after them, in any layer."""
        return any(attention.both_ways for attention in self.attention)

    @property
    def recurrent(self) -> list[DeltaNet]:
        """The layers' mixers that keep a state for each sequence instead of pages, each kind once."""
        return list(dict.fromkeys(spec.mixer for spec in self.layers if isinstance(spec.mixer, DeltaNet)))

    @property
    def layers_of_experts(self) -> list[int]:
        """The layers that have experts."""
        return [number for number, spec in enumerate(self.layers) if spec.experts is not None]

    @property
    def experts(self) -> Experts | None:
        """Those of any layer: in all layers that have them, they are alike."""
        return next((spec.experts for spec in self.layers if spec.experts is not None), None)

    def serving(self, longest: int | None) -> "Architecture":
        """The same with rotary embeddings for sequences of up to `longest` tokens; None: `max_position`."""
        longest = longest or self.max_position
        return replace(self, layers=tuple(replace(spec, mixer=spec.mixer.serving(longest)) for spec in self.layers))

    def few(self, layers: int) -> list[int]:
        """So many of its layers: the first, but one of each form, as far as so few can be."""
        every = range(self.num_layers)
        forms = {self.layers[layer].form: layer for layer in reversed(every)}
        chosen = sorted(forms.values())[:layers]
        chosen += [layer for layer in every if layer not in chosen][: layers - len(chosen)]
        return sorted(chosen)

    def only(self, layers: Sequence[int]) -> "Architecture":
        """The same with these of its layers."""
        return replace(self, layers=tuple(self.layers[layer] for layer in layers))

    def split(self, devices: int, expert_parallel: int | None = None) -> Split:
        """Over `devices` devices.

        Args:
            expert_parallel: groups that the experts are split over; default: as many as their number allows.

        Raises:
            ValueError: the model does not split so; says which field to change.
        """
        for width in sorted(self._split_widths):
            if width % devices:
                raise ValueError(
                    f"tensor_parallel {devices} does not divide the model's intermediate_size {width}; choose "
                    "a divisor of it"
                )
        split = Split(devices, devices // _expert_groups(self.experts, devices, expert_parallel))
        for num_heads, num_kv_heads in dict.fromkeys((each.num_heads, each.num_kv_heads) for each in self.attention):
            if num_heads % split.heads(num_heads, num_kv_heads).kv_heads:
                fits = [
                    n
                    for n in range(1, num_heads + 1)
                    if not num_heads % Split(n).heads(num_heads, num_kv_heads).kv_heads
                ]
                raise ValueError(
                    f"tensor_parallel {devices} cannot split {num_heads} attention heads with "
                    f"{num_kv_heads} key/value heads evenly; it can be one of {fits}"
                )
        for mixer in self.recurrent:
            if mixer.num_key_heads % devices:
                fits = [n for n in range(1, mixer.num_key_heads + 1) if mixer.num_key_heads % n == 0]
                raise ValueError(
                    f"tensor_parallel {devices} cannot split {mixer.num_key_heads} key heads of linear attention "
                    f"evenly; it can be one of {fits}"
                )
        return split

    @property
    def _split_widths(self) -> set[int]:
        """Widths of the feed-forward networks that are split over devices."""
        networks = {spec.mlp for spec in self.layers} | {spec.experts and spec.experts.shared for spec in self.layers}
        return {network.width for network in networks if network is not None}

    @property
    def num_params(self) -> int:
        """Number of parameters, without biases and norms (less than a thousandth)."""
        return self._params(self.experts.count if self.experts else 0)

    @property
    def active_params(self) -> int:
        """Those that one token is multiplied by, and the embeddings."""
        return self._params(self.experts.per_token if self.experts else 0)

    def _params(self, experts: int) -> int:
        rows = 0  # of hidden_size numbers, as in all matrices
        for spec in self.layers:
            rows += spec.mixer.rows + 3 * (spec.inputs.width if spec.inputs else 0)
            rows += spec.mlp.rows if spec.mlp else 0
            rows += spec.experts.rows(experts) if spec.experts else 0
        embeddings = self.hidden_size * (1 if self.tied_embeddings else 2) + self.num_layers * self.input_width
        tower = self.tower.num_params if self.tower else 0
        return self.hidden_size * rows + self.vocab_size * embeddings + tower


def _expert_groups(experts: Experts | None, devices: int, asked: int | None) -> int:
    if experts is None:
        if asked is not None:
            raise ValueError(f"expert_parallel is {asked}, but this model has no experts; leave it unset")
        return devices
    if asked is not None and devices % asked:
        raise ValueError(f"expert_parallel {asked} does not divide tensor_parallel {devices}; choose a divisor of it")
    tried = [asked] if asked else [groups for groups in range(devices, 0, -1) if devices % groups == 0]
    for groups in tried:
        if experts.count % groups == 0 and experts.width % (devices // groups) == 0:
            return groups
    if asked is not None and experts.count % asked:
        raise ValueError(f"expert_parallel {asked} does not divide the model's {experts.count} experts; leave it unset")
    if asked is not None:
        raise ValueError(
            f"expert_parallel {asked} leaves {devices // asked} devices for the width of an expert, {experts.width}, "
            "which they do not divide; leave it unset"
        )
    raise ValueError(
        f"tensor_parallel {devices} does not divide the model's {experts.count} experts, nor is it a divisor of that "
        f"times one of their width, {experts.width}; choose a divisor of either"
    )
