"""How large a model and a training step are: parameters, bytes on a GPU, before anything is downloaded or allocated.

Everything is arithmetic on the numbers of a config.json; no framework is imported. The counts are exact for decoders
of the Llama kind (Llama, Mistral, Qwen2, Qwen3): parameters, the key-value cache, and what the backward pass of
transformers' layers keeps (attention without the score matrix: SDPA or flash). Not counted: the CUDA context (about
half a GiB), fragmentation of the allocator, communication buffers. GiB is 2**30 bytes.

>>> qwen = KNOWN["Qwen/Qwen3-8B"].architecture
>>> qwen.parameters, qwen.cache_bytes(2)  # and bytes of cache a token, in two-byte numbers
(8190735360, 147456)
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.parsing import json_value

GIB = 2**30
FLOAT32 = 4  # bytes; optimizer states, norms and statistics are kept in it
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ADAM_STATES = 2  # first and second moment


@dataclass(frozen=True)
class Architecture:
    """The numbers that decide the size of a decoder of the Llama kind.

    hidden: width of the residual stream. intermediate: width of the gated MLP. head_size: of one attention head; heads
    times head_size need not equal hidden. tied: the head is the embedding. attention_bias: query, key and value have
    one. output_bias: the attention's output has one too. qk_norm: heads are normalised (Qwen3). context: positions.
    Raises ValueError for a number below 1 or heads that kv_heads does not divide.
    """

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    tied: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    context: int = 32_768

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool) and value < 1:
                raise ValueError(f"Architecture.{field.name} is {value}; it must be at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(f"Architecture.kv_heads is {self.kv_heads}; it must divide heads = {self.heads}")

    @property
    def queries(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Width of all key heads together; the values are as wide."""
        return self.kv_heads * self.head_size

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: attention, MLP, norms."""
        attention = 2 * self.hidden * (self.queries + self.keys)
        biases = self.attention_bias * (self.queries + 2 * self.keys) + self.output_bias * self.hidden
        return attention + biases + 3 * self.hidden * self.intermediate + 2 * self.hidden + self._head_norms

    @property
    def _head_norms(self) -> int:
        return 2 * self.head_size if self.qk_norm else 0

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, and of the head where it is a matrix of its own."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.embedding_parameters + self.layers * self.layer_parameters + self.hidden

    def cache_bytes(self, width: int) -> int:
        """Bytes that one token occupies in the key-value cache, in numbers of `width` bytes."""
        return 2 * self.layers * self.keys * width

    def layer_activation_bytes(self, width: int) -> int:
        """Bytes that one layer keeps for the backward pass, per token, computing in numbers of `width` bytes.

        2 (4H + 4) for the norms' float32 inputs and scales, width times (4H + 2Q + 2K + 4I) for the inputs of the
        products, the normalised values, query, key, value and output of the attention, and the gate; 4 for each head's
        log-sum-exp. With norms on heads (4 + width) (Q + K) and a scale for each head on top.
        """
        norms = 2 * (FLOAT32 * self.hidden + FLOAT32)
        inner = 4 * self.hidden + 2 * self.queries + 2 * self.keys + 4 * self.intermediate
        head_norms = (FLOAT32 + width) * (self.queries + self.keys) + FLOAT32 * (self.heads + self.kv_heads)
        return norms + width * inner + FLOAT32 * self.heads + (head_norms if self.qk_norm else 0)

    def activation_bytes(self, width: int, recompute: bool) -> int:
        """Bytes per token that all layers keep for the backward pass.

        recompute: each layer keeps its input alone, and one layer at a time has the rest.
        """
        layer = self.layer_activation_bytes(width)
        return self.layers * width * self.hidden + layer if recompute else self.layers * layer


@dataclass(frozen=True)
class Known:
    """An architecture, and where its numbers come from."""

    architecture: Architecture
    source: str


def _qwen2(vocabulary: int, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int) -> Architecture:
    numbers = (vocabulary, hidden, intermediate, layers, heads, kv_heads, hidden // heads)
    return Architecture(*numbers, attention_bias=True, context=131_072)


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int) -> Architecture:
    return Architecture(151_936, hidden, intermediate, layers, heads, 8, 128, qk_norm=True, context=40_960)


def _published(name: str, architecture: Architecture) -> tuple[str, Known]:
    return name, Known(architecture, f"the config.json that {name} is published with")


KNOWN: dict[str, Known] = dict(
    [
        _published("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", _qwen2(151_936, 1536, 8960, 28, 12, 2)),
        _published("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", _qwen2(152_064, 3584, 18_944, 28, 28, 4)),
        _published("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", _qwen2(152_064, 5120, 27_648, 64, 40, 8)),
        _published("Qwen/Qwen2.5-32B", _qwen2(152_064, 5120, 27_648, 64, 40, 8)),
        _published("Qwen/Qwen3-8B", _qwen3(4096, 12_288, 36, 32)),
        _published("Qwen/Qwen3-14B", _qwen3(5120, 17_408, 40, 40)),
        _published("Qwen/Qwen3-32B", _qwen3(5120, 25_600, 64, 64)),
        ("smollm2", Known(Architecture(49_152, 576, 1536, 30, 9, 3, 64, True, context=8192), "SmolLM2-135M-Instruct")),
    ]
)

# What the model types differ in; a config.json states the rest. Defaults are those of the types' configurations.
_TYPES: dict[str, dict[str, bool]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {"attention_bias": True},
    "qwen3": {"qk_norm": True},
}


def of_config(config: Mapping[str, Any], label: str = "config.json") -> Architecture:
    """The architecture in a config.json of one of the types llama, mistral, qwen2, qwen3.

    Raises IsentropeError for another type, or a number that is missing: then nothing is known, rather than guessed.
    """
    kind = config.get("model_type")
    if kind not in _TYPES:
        raise IsentropeError(f"{label}: model_type {kind!r} is none of {', '.join(_TYPES)}; its size is not known")
    flags = dict(_TYPES[kind])
    if kind in ("llama", "qwen3") and config.get("attention_bias"):
        flags |= {"attention_bias": True, "output_bias": True}
    try:
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        return Architecture(
            vocabulary=int(config["vocab_size"]),
            hidden=hidden,
            intermediate=int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_size=int(config.get("head_dim") or hidden // heads),
            tied=bool(config.get("tie_word_embeddings", False)),
            context=int(config.get("max_position_embeddings", Architecture.context)),
            **flags,
        )
    except KeyError as error:
        raise IsentropeError(f"{label} has no {error.args[0]!r}; its size is not known") from error


def find(name: str) -> Known | None:
    """The architecture of a model by the name that a recipe gives it, without network; None where nothing is known.

    In this order: the embedded model, a folder's config.json, the hub cache's, the table `KNOWN`.
    Raises IsentropeError for a config.json that cannot be read, or whose type is not one of ours.
    """
    path = _config_path(name)
    if path is None:
        return KNOWN.get(name)
    try:
        return Known(of_config(json_value(path.read_text(encoding="utf-8")), str(path)), str(path))
    except (OSError, ValueError) as error:
        raise IsentropeError(f"cannot read {path}: {error}") from error


def _config_path(name: str) -> Path | None:
    if name == "embedded":
        return Path(str(resources.files("isentrope").joinpath("embedded", "config.json")))
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder / "config.json"
    return _cached_config(name)


def _cached_config(name: str) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # no hub id
        return None
    return Path(found) if isinstance(found, str) else None


@dataclass(frozen=True)
class Step:
    """One optimizer step on one of `gpus` equal GPUs, with AdamW.

    weight_bytes: of one number of the weights, which gradients and both moments of the optimizer share (torch's AdamW
    keeps its moments in the weights' type). compute_bytes: of one number in the layers; smaller than weight_bytes under
    autocast or mixed precision. sharded: weights, gradients and moments are shared out over the GPUs (FSDP, ZeRO-3), a
    layer at a time is gathered; else every GPU holds them whole. rows, tokens: of one forward pass on this GPU, prompts
    included, padded to the longest. recompute: activations are computed again in the backward pass. full_logits: the
    head keeps the token-by-vocabulary matrix, which the kernels here and TRL's do not.
    """

    architecture: Architecture
    rows: int
    tokens: int
    weight_bytes: int = FLOAT32
    compute_bytes: int = 2
    gpus: int = 1
    sharded: bool = True
    recompute: bool = True
    full_logits: bool = False

    @property
    def _shards(self) -> int:
        return self.gpus if self.sharded else 1

    def memory(self) -> dict[str, int]:
        """Bytes by what holds them: weights, gradients, optimizer, gathered, activations, logits; the peak is the sum.

        gathered: the compute copies that sharding or mixed precision needs of the embedding, the head and one layer.
        logits: with full_logits a row of the vocabulary per token, in compute_bytes and twice in float32 (log-softmax
        and its gradient).
        """
        shape, share = self.architecture, -(-self.architecture.parameters // self._shards)
        copies = self.gpus > 1 and self.sharded
        gathered = (shape.embedding_parameters + shape.layer_parameters) * self.compute_bytes if copies else 0
        cast = shape.layer_parameters * self.compute_bytes if self.compute_bytes < self.weight_bytes else 0
        positions = self.rows * self.tokens
        return {
            "weights": share * self.weight_bytes,
            "gradients": share * self.weight_bytes,
            "optimizer": share * self.weight_bytes * ADAM_STATES,
            "gathered": max(gathered, cast),
            "activations": positions * shape.activation_bytes(self.compute_bytes, self.recompute),
            "logits": positions * shape.vocabulary * (self.compute_bytes + 2 * FLOAT32) if self.full_logits else 0,
        }


def rollout_memory(
    architecture: Architecture, rows: int, tokens: int, width: int = 2, weights_over: int = 1
) -> dict[str, int]:
    """Bytes on one GPU while `rows` completions are sampled side by side: weights and cache.

    tokens: prompt and completion at full length. width: bytes of a number. weights_over: GPUs that a copy of the
    weights, and the heads of the cache, are shared out over (tensor parallelism).
    """
    return {
        "weights": -(-architecture.parameters * width // weights_over),
        "cache": -(-rows * tokens * architecture.cache_bytes(width) // weights_over),
    }
