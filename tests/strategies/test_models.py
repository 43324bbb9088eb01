import sys

import pytest

from strategies.mesh import Mesh
from strategies.models import MODELS, Tensor, find_model
from strategies.traffic import Job

MIB = 2**20
KIB = 2**10

needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 reads no TOML by itself")


@pytest.mark.parametrize(
    ("name", "activation", "layer", "layer_mib"),
    [
        ("llama3-8b", 64 * MIB, 218_112_000, 416),
        ("llama3-70b", 128 * MIB, 855_654_400, 1632),
        ("llama3-405b", 256 * MIB, 3_187_703_808, 6080),
    ],
)
def test_llama3_sizes_for_one_sequence_of_8192_in_bf16(name, activation, layer, layer_mib):
    model = MODELS[name]
    job = Job(model, batch=1, seq=8192)
    assert job.activation_nbytes(Mesh("tp=8")) == activation
    assert job.seq * model.kv_heads * model.head_dim * job.itemsize == 16 * MIB  # K or V
    assert model.layer_parameters(0) == layer
    norms = 2 * model.hidden
    assert (layer - norms) * 2 == layer_mib * MIB


def test_other_sizes_for_one_sequence_of_8192():
    job = Job(MODELS["llama3-70b"], seq=8192)
    assert job.tokens(Mesh("tp=8")) * 4 == 32 * KIB  # one number a token in the vocabulary-parallel loss, fp32
    assert job.activation_nbytes(Mesh("tp=8")) // 8 == 16 * MIB  # pipeline message under sequence parallelism
    hidden = MODELS["llama3-8b"].hidden
    assert [batch * hidden * 2 for batch in (1, 64)] == [8 * KIB, 512 * KIB]  # all-reduce of a decode step


@pytest.mark.parametrize(
    ("name", "tokens", "nranks", "total", "per_peer", "fp8"),
    [("mixtral-8x7b", 8192, 8, 128, 16, 66), ("deepseek-v3", 4096, 64, 448, 7, 231)],
)
def test_dispatch_sizes_of_mixtures(name, tokens, nranks, total, per_peer, fp8):
    model = MODELS[name]
    rows = tokens * model.experts_per_token
    assert rows * model.hidden * 2 == total * MIB
    assert rows * model.hidden * 2 // nranks == per_peer * MIB
    assert rows * (model.hidden + model.hidden // 128 * 4) == fp8 * MIB  # with a fp32 scale for 128 elements


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt3-175b", 174_604_259_328),  # 174,600M in table D.1 of the paper
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("deepseek-v3", 671_026_404_352),
        ("qwen3-235b", 235_093_634_560),
    ],
)
def test_published_numbers_of_parameters(name, parameters):
    assert MODELS[name].parameters == parameters == sum(tensor.count for tensor in MODELS[name].tensors())


@pytest.mark.parametrize(("name", "billions"), [("mixtral-8x7b", 12.9), ("qwen3-235b", 22.2), ("deepseek-v3", 37.6)])
def test_parameters_that_one_token_meets(name, billions):
    assert round(MODELS[name].active_parameters / 1e9, 1) == billions


def test_layers_make_up_the_model_only_with_the_root():
    model = MODELS["llama3-8b"]
    layers = sum(model.layer_parameters(layer) for layer in range(model.layers))
    assert layers + model.root_parameters == model.parameters
    assert model.root_parameters == 2 * 128256 * 4096 + 4096


def test_buckets_of_whole_parameters_in_reverse_order():
    def buckets(itemsize):
        closed, held, limit = 0, 0, 1 * MIB
        for tensor in reversed(list(MODELS["llama3-8b"].tensors())):
            held += tensor.count * itemsize
            if held >= limit:
                closed, held, limit = closed + 1, 0, 25 * MIB
        return closed + (held > 0)

    assert (buckets(2), buckets(4)) == (162, 194)


def test_every_model_has_a_source_and_distinct_tensor_names():
    for model in MODELS.values():
        assert model.source
        names = [tensor.name for tensor in model.tensors()]
        assert len(names) == len(set(names))


def test_tensor_parallel_parts_pad_what_does_not_divide():
    vocab = Tensor("embedding", (50257, 12288), cut=0)
    assert vocab.part(8).shape == (6283, 12288)
    assert Tensor("norm", (12288,)).part(8).shape == (12288,)


def test_unknown_model_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"no model 'llama'; take one of tiny, .*\.toml"):
        find_model("llama")


OWN = """
layers = 2
hidden = 64
heads = 4
kv_heads = 2
head_dim = 16
ffn = 256
vocab = 1000
seq = 128
"""


@needs_toml
def test_model_from_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(OWN + "experts = 4\nexperts_per_token = 2\nexpert_ffn = 32\n")
    model = find_model(str(path))
    assert (model.name, model.source, model.experts) == ("mine", str(path), 4)


@needs_toml
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OWN + "depth = 2", "there is no field depth; the fields are name, layers"),
        ("layers = 2", "ffn, head_dim, heads, hidden, kv_heads, seq, vocab missing"),
        (OWN.replace("ffn = 256", "ffn = '256'"), "ffn = '256' is no int"),
        (OWN + "tied = 1", "tied = 1 is no bool"),
        (OWN + "experts = -1", "experts = -1 is negative"),
        (OWN.replace("kv_heads = 2", "kv_heads = 3"), "kv_heads=3 does not divide heads=4"),
        (OWN.replace("layers = 2", "layers = 0"), "layers=0; it must be at least 1"),
        (OWN + "experts = 4", "experts=4 needs expert_ffn"),
        ("layers: 2", "cannot be read as TOML"),
    ],
)
def test_faults_of_a_file_are_named(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        find_model(str(path))


@needs_toml
def test_a_missing_file_is_named():
    with pytest.raises(ValueError, match=r"nowhere\.toml cannot be read"):
        find_model("nowhere.toml")
