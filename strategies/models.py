"""Shapes of well-known models, and the parameters that follow from them.

Letters of the field: b sequences, s tokens of a sequence, h hidden, a query heads, g key/value heads, d head
width, f inner width of the feed-forward, V vocabulary, E experts, k experts per token.

Every count is a sum over `Model.tensors`, which lists each weight with its shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, replace
from functools import cached_property
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Tensor:
    """One weight. `cut` is the dimension that tensor parallelism splits, None where each rank holds all of it."""

    name: str
    shape: tuple[int, ...]
    cut: int | None = None
    expert: int | None = None  # which routed expert it belongs to, None outside the experts

    @property
    def count(self) -> int:
        """Elements."""
        return prod(self.shape)

    def part(self, nranks: int) -> Tensor:
        """Give what each of `nranks` tensor-parallel ranks holds; a remainder is padded, as vocabularies are."""
        if self.cut is None:
            return self
        cut = -(-self.shape[self.cut] // nranks)
        return replace(self, shape=(*self.shape[: self.cut], cut, *self.shape[self.cut + 1 :]))


@dataclass(frozen=True)
class Model:
    """A transformer's shape. `source` says where its numbers stand."""

    name: str
    layers: int
    hidden: int  # h
    heads: int  # a
    kv_heads: int  # g
    head_dim: int  # d of queries and keys
    ffn: int  # f of the dense layers
    vocab: int  # V
    seq: int  # s it was trained with
    source: str
    v_head_dim: int | None = None  # d of values, head_dim unless given
    gated: bool = True  # three matrices in the feed-forward (SwiGLU), else two
    bias: bool = False  # biases in linear layers and norms (GPT-3)
    qk_norm: bool = False  # a norm on each head's queries and keys (Qwen3)
    tied: bool = False  # the head is the embedding
    positions: int = 0  # learned position embeddings
    experts: int = 0  # E routed experts in each mixture layer
    experts_per_token: int = 0  # k
    expert_ffn: int = 0  # f of one expert
    shared_experts: int = 0  # experts that see every token
    dense_layers: int = 0  # how many of the first layers have no experts, where others have
    q_rank: int = 0  # multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): low rank of queries,
    kv_rank: int = 0  # of keys and values,
    rope_dim: int = 0  # and the part of head_dim that carries the position

    def __post_init__(self):
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "seq"):
            if getattr(self, name) < 1:
                raise ValueError(f"model {self.name}: {name}={getattr(self, name)}; it must be at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"model {self.name}: kv_heads={self.kv_heads} does not divide heads={self.heads}; "
                "each key/value head serves the same number of query heads"
            )
        if self.experts and not (1 <= self.experts_per_token <= self.experts and self.expert_ffn > 0):
            raise ValueError(
                f"model {self.name}: experts={self.experts} needs expert_ffn (is {self.expert_ffn}) and "
                f"experts_per_token from 1 to {self.experts} (is {self.experts_per_token})"
            )

    @property
    def value_dim(self) -> int:
        """Width of one head's values and outputs."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    def is_moe(self, layer: int) -> bool:
        """Tell whether `layer`, from 0, has experts."""
        return self.experts > 0 and layer >= self.dense_layers

    @cached_property
    def embedding_tensors(self) -> list[Tensor]:
        """What stands before the first layer."""
        tensors = [Tensor("embedding", (self.vocab, self.hidden), cut=0)]
        return tensors + ([Tensor("positions", (self.positions, self.hidden))] if self.positions else [])

    def layer_tensors(self, layer: int) -> list[Tensor]:
        """List the weights of one layer, in the order of the forward pass."""
        return self._moe_layer if self.is_moe(layer) else self._dense_layer

    @cached_property
    def head_tensors(self) -> list[Tensor]:
        """What stands after the last layer; a tied head is the embedding and not listed again."""
        return self._norm("final_norm") + ([] if self.tied else [Tensor("head", (self.vocab, self.hidden), cut=0)])

    def tensors(self) -> Iterator[Tensor]:
        """Go through all weights, in the order of the forward pass."""
        yield from self.embedding_tensors
        for layer in range(self.layers):
            yield from (replace(tensor, name=f"layer{layer}.{tensor.name}") for tensor in self.layer_tensors(layer))
        yield from self.head_tensors

    def layer_parameters(self, layer: int) -> int:
        """Count the elements of one layer, norms included."""
        return _count(self.layer_tensors(layer))

    @property
    def root_parameters(self) -> int:
        """Elements outside the layers: embedding, final norm, head."""
        return _count(self.embedding_tensors) + _count(self.head_tensors)

    @property
    def parameters(self) -> int:
        """Elements of the whole model."""
        return self.root_parameters + sum(self.layer_parameters(layer) for layer in range(self.layers))

    @property
    def active_parameters(self) -> int:
        """Elements that one token meets: all but the experts it is not sent to."""
        idle = (self.experts - self.experts_per_token) * _count(self._ffn("expert", self.expert_ffn))
        return self.parameters - idle * sum(self.is_moe(layer) for layer in range(self.layers))

    @cached_property
    def _dense_layer(self) -> list[Tensor]:
        return self._attention() + self._ffn("mlp", self.ffn) + self._norm("input_norm") + self._norm("mlp_norm")

    @cached_property
    def _moe_layer(self) -> list[Tensor]:
        tensors = [*self._attention(), Tensor("router", (self.experts, self.hidden))]
        for expert in range(self.experts):
            tensors += [replace(tensor, expert=expert) for tensor in self._ffn(f"expert{expert}", self.expert_ffn)]
        if self.shared_experts:
            tensors += self._ffn("shared", self.shared_experts * self.expert_ffn)
        return tensors + self._norm("input_norm") + self._norm("mlp_norm")

    def _attention(self) -> list[Tensor]:
        q, k, v = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.value_dim
        if self.kv_rank:
            kv = self.heads * (self.head_dim - self.rope_dim + self.value_dim)
            tensors = [
                Tensor("q_down", (self.q_rank, self.hidden)),
                Tensor("q_down_norm", (self.q_rank,)),
                Tensor("q_up", (q, self.q_rank), cut=0),
                Tensor("kv_down", (self.kv_rank + self.rope_dim, self.hidden)),
                Tensor("kv_down_norm", (self.kv_rank,)),
                Tensor("kv_up", (kv, self.kv_rank), cut=0),
            ]
        else:
            tensors = [
                *self._linear("q", q, self.hidden, cut=0),
                *self._linear("k", k, self.hidden, cut=0),
                *self._linear("v", v, self.hidden, cut=0),
            ]
        tensors += self._linear("o", self.hidden, self.heads * self.value_dim, cut=1)
        if self.qk_norm:
            tensors += [Tensor("q_norm", (self.head_dim,)), Tensor("k_norm", (self.head_dim,))]
        return tensors

    def _ffn(self, name: str, inner: int) -> list[Tensor]:
        gate = self._linear(f"{name}.gate", inner, self.hidden, cut=0) if self.gated else []
        up = self._linear(f"{name}.up", inner, self.hidden, cut=0)
        return gate + up + self._linear(f"{name}.down", self.hidden, inner, cut=1)

    def _linear(self, name: str, rows: int, columns: int, cut: int) -> list[Tensor]:
        """Make a matrix (outputs, inputs) and its bias, which is split only where the outputs are."""
        tensors = [Tensor(name, (rows, columns), cut)]
        return tensors + ([Tensor(f"{name}.bias", (rows,), 0 if cut == 0 else None)] if self.bias else [])

    def _norm(self, name: str) -> list[Tensor]:
        tensors = [Tensor(name, (self.hidden,))]
        return tensors + ([Tensor(f"{name}.bias", (self.hidden,))] if self.bias else [])


def _count(tensors: list[Tensor]) -> int:
    return sum(tensor.count for tensor in tensors)


_LLAMA3 = "Llama 3, arXiv 2407.21783, table 3; vocabulary and sequence from section 3"

MODELS = {
    model.name: model
    for model in (
        Model(
            name="tiny",
            layers=4, hidden=256, heads=32, kv_heads=16, head_dim=8, ffn=1024, vocab=4096, seq=1024,
            experts=16, experts_per_token=2, expert_ffn=256, dense_layers=2,
            source="made up here: every strategy applies to it, at up to 16 ranks an axis",
        ),
        Model(
            name="gpt3-175b",
            layers=96, hidden=12288, heads=96, kv_heads=96, head_dim=128, ffn=4 * 12288, vocab=50257, seq=2048,
            gated=False, bias=True, tied=True, positions=2048,
            source="GPT-3, arXiv 2005.14165, table 2.1 and section 2.1; vocabulary of GPT-2's tokenizer",
        ),
        Model(
            name="llama3-8b",
            layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256, seq=8192,
            source=_LLAMA3,
        ),
        Model(
            name="llama3-70b",
            layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672, vocab=128256, seq=8192,
            source=_LLAMA3,
        ),
        Model(
            name="llama3-405b",
            layers=126, hidden=16384, heads=128, kv_heads=8, head_dim=128, ffn=53248, vocab=128256, seq=8192,
            source=_LLAMA3,
        ),
        Model(
            name="mixtral-8x7b",
            layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=32000, seq=32768,
            experts=8, experts_per_token=2, expert_ffn=14336,
            source="Mixtral of Experts, arXiv 2401.04088, table 1",
        ),
        Model(
            name="deepseek-v3",
            layers=61, hidden=7168, heads=128, kv_heads=128, head_dim=128 + 64, v_head_dim=128, ffn=18432,
            vocab=129280, seq=4096, experts=256, experts_per_token=8, expert_ffn=2048, shared_experts=1,
            dense_layers=3, q_rank=1536, kv_rank=512, rope_dim=64,
            source="DeepSeek-V3, arXiv 2412.19437, section 4.2; ffn, vocab: config.json of deepseek-ai/DeepSeek-V3",
        ),
        Model(
            name="qwen3-235b",
            layers=94, hidden=4096, heads=64, kv_heads=4, head_dim=128, ffn=12288, vocab=151936, seq=4096,
            experts=128, experts_per_token=8, expert_ffn=1536, qk_norm=True,
            source="Qwen3, arXiv 2505.09388, table 2 and section 3.2; widths: config.json of Qwen/Qwen3-235B-A22B",
        ),
    )
}  # fmt: skip


def find_model(name: str) -> Model:
    """Find the model called `name`, or described in the TOML file of that name ("my.toml").

    Raises ValueError naming the known models, or what is wrong in the file.
    """
    if name in MODELS:
        return MODELS[name]
    if name.endswith(".toml"):
        return read_model(Path(name))
    raise ValueError(f"there is no model {name!r}; take one of {', '.join(MODELS)}, or a file ending in .toml")


def read_model(path: Path) -> Model:
    """Read a model from a TOML file whose keys are the fields of `Model`; name and source default to the file's.

    Raises ValueError naming the file and what is wrong in it, with what would be right.
    """
    toml = toml_reader()
    try:
        values = toml.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, toml.TOMLDecodeError) as error:
        raise ValueError(f"{path} cannot be read as TOML: {error}; write one `field = value` a line") from None
    values = {"name": path.stem, "source": str(path)} | values
    types = {field.name: str(field.type) for field in fields(Model)}
    needed = {field.name for field in fields(Model) if field.default is MISSING}
    if unknown := values.keys() - types.keys():
        raise ValueError(f"{path}: there is no field {', '.join(sorted(unknown))}; the fields are {', '.join(types)}")
    if missing := needed - values.keys():
        raise ValueError(f"{path}: {', '.join(sorted(missing))} missing; a model needs {', '.join(sorted(needed))}")
    for name, value in values.items():
        wanted = types[name].split(" ")[0]  # "int | None" takes an int; what may be None is left out instead
        if type(value).__name__ != wanted:
            raise ValueError(f"{path}: {name} = {value!r} is no {wanted}; give one")
        if wanted == "int" and value < 0:
            raise ValueError(f"{path}: {name} = {value} is negative; give a count")
    return Model(**values)


def toml_reader() -> Any:
    """Import the TOML reader of Python 3.11 and later, or the package that became it."""
    for name in ("tomllib", "tomli"):
        with suppress(ModuleNotFoundError):
            return import_module(name)
    raise ValueError("a model file needs Python 3.11 or later, or the package tomli; or take a model by name")
