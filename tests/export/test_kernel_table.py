"""Sums of kernels' times: whose kernels they are, what is measured, what is kept, what is lost."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import require
from flax import nnx
from jaxeff_export import deploy, modelled_latency, table_latency
from jaxeff_export.bundle import Bundle, KernelOfLayer, kernel_calls
from jaxeff_export.bundle._example import layers_of
from jaxeff_export.bundle.files import BundleError
from jaxeff_export.bundle.running import OperatorTime
from jaxeff_export.latency._table import Cells, _split

import jaxeff
from jaxeff.nn import ResNet8, small_classifier
from jaxeff.search import (
    Actions,
    Candidate,
    Candidates,
    FewBitLayers,
    LatencyError,
    Policy,
    SearchSpace,
)
from jaxeff.store import CheckpointError

F, PARAMS, (X, Y) = small_classifier(32)
SPACE = SearchSpace.read(F, PARAMS, X[:1], few_bit_layers=FewBitLayers(inputs=1, outputs=1))
CANDIDATES = Candidates(F, PARAMS, (X, Y), (X, Y), SPACE, steps=0, batch_size=32)
FEW = {"number": 2, "repeat": 3}


def candidate(bits, kept=None):
    n = len(SPACE.sites)
    sizes = SPACE.sizes if kept is None else np.asarray(kept, np.int32)
    widths = np.full(n, bits, np.int32)
    return Candidate(
        Policy(sizes, SPACE.uncompressed.datatypes, widths, widths), SPACE, CANDIDATES.smaller
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("table")


@pytest.mark.slow
@pytest.mark.parametrize("bits", [32, 8])
def test_kernels_belong_to_the_layers_whose_weights_they_read(bits):
    small = candidate(bits).small
    g, params = small.integer(X[:1])
    bundle = deploy(g, (params, X[:1]))
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(small.params)]
    calls = kernel_calls(bundle.manifest, bundle.artifact, SPACE.names, paths)
    assert {call.kernel for call in calls} == {o.name for o in bundle.profile(**FEW)}
    layers = [layer for call in calls for layer in call.layers]
    assert layers == sorted(layers)
    assert set(layers) == set(range(len(SPACE.sites)))


def test_times_are_split_by_kernels():
    """Two calls of one kernel have half of its time each; sums are the time that was given."""
    profile = [OperatorTime("a", 2.0, 6.0, 0.6), OperatorTime("b", 1.0, 4.0, 0.4)]
    calls = [KernelOfLayer("a", (0,)), KernelOfLayer("b", (0,)), KernelOfLayer("a", (1,))]
    assert _split([profile], calls, 2, 20.0) == pytest.approx([14.0, 6.0])


@pytest.mark.slow
def test_what_is_known_is_not_measured_again(folder):
    latency = table_latency(X[:1], folder=folder, **FEW)
    seconds = latency(candidate(32))
    assert 0 < seconds < 1
    assert latency.fills == 1
    assert latency(candidate(32)) == seconds
    assert latency.fills == 1
    again = table_latency(X[:1], folder=folder, **FEW)
    assert again(candidate(32)) == pytest.approx(seconds)
    assert again.fills == 0
    with pytest.raises(CheckpointError, match="nodes"):
        table_latency(X[:1], folder=folder, nodes=(4,), **FEW)(candidate(32))


def test_whole_vectors_are_made_and_shares_of_them_are_read():
    latency = table_latency(X[:1], nodes=(2,), **FEW)
    low, high = ([2] * len(SPACE.groups), SPACE.sizes)
    middle = (np.asarray(low) + high) // 2
    cells = latency._begin(SPACE)
    corners = [[(2, int(n))[i] for i, n in zip(index, high, strict=True)]
               for index in np.ndindex(*[2] * len(high))]  # fmt: skip
    for sizes in corners:  # cells as if they had been measured
        for own in cells.shares(candidate(8, sizes).policy):
            for share in own:
                latency._known[share.cell] = [float(sum(share.cell.channels) + 1)]
    found = latency.layers(candidate(8, middle))
    both = zip(cells.written, cells.read, strict=True)
    wanted = [
        sum(int(high[g]) for g in made) + sum(int(middle[g]) for g in read) + 1
        for made, read in both
    ]
    assert found == pytest.approx(wanted)
    assert any(cells.read)
    assert latency.fills == 0


def test_planes_of_activations_count_more_than_those_of_weights():
    """Bits lie between one each and the most of either; what isn't worth planes is bytes."""
    cells = dataclasses.replace(Cells.of(SPACE, (2,), "host"), worth=4)
    (one, of_weights, of_activations) = (
        {share.cell[2:]: share.weight for share in cells.shares(widths(*bits))[1]}
        for bits in ((1, 1), (3, 1), (1, 3))
    )
    assert one == {(1, 1): 1}
    assert of_weights == pytest.approx({(1, 1): 1 / 3, (4, 1): 2 / 3})
    assert of_activations == pytest.approx({(1, 1): 1 / 3, (1, 4): 2 / 3})
    both = {share.cell[2:]: share.weight for share in cells.shares(widths(2, 2))[1]}
    assert both == pytest.approx({(1, 1): 1 / 3, (4, 1): 1 / 3, (1, 4): 1 / 3})
    assert {share.cell[2:] for share in cells.shares(widths(2, 3))[1]} == {(8, 8)}


def widths(weights, activations):
    uncompressed, n = SPACE.uncompressed, len(SPACE.sites)
    return Policy(
        uncompressed.kept, uncompressed.datatypes, np.full(n, weights), np.full(n, activations)
    )


@pytest.mark.slow
def test_layers_of_one_geometry_share_cells():
    """The inner blocks of a ResNet are alike but for what is added to an earlier layer."""
    model = ResNet8(widths=(8, 8, 8), rngs=nnx.Rngs(0))
    model.eval()
    f, params = jaxeff.functional(model)
    space = SearchSpace.read(
        f, params, jnp.zeros((1, 16, 16, 3)), few_bit_layers=FewBitLayers(inputs=1, outputs=1)
    )
    cells = Cells.of(space, None, "host")
    names, like = space.names, cells.like
    makers = {names[i]: names[j] for i, j in enumerate(cells.makers) if j >= 0}
    assert makers["stage2/conv1"] == "stage1/conv2"
    assert makers["stage1/conv1"] == "conv1"
    assert like[names.index("stage1/conv1")] != like[names.index("stage1/conv2")]

    twice = Policy(
        space.uncompressed.kept, space.uncompressed.datatypes, *np.full((2, len(names)), 8)
    )
    assert cells.conversions(twice) == [0.0] * len(names)
    readers = [i for i, maker in enumerate(cells.makers) if names[maker] == "stage1/conv2"]
    bits = np.full(len(names), 8)
    bits[readers[0]] = 5  # the same numbers in two widths
    maker = names.index("stage1/conv2")
    numbers = 8 * space.sites[maker].places ** 2
    assert cells.conversions(dataclasses.replace(twice, activations=bits))[maker] == numbers
    bits[readers[0]] = 32  # and in float
    assert cells.conversions(dataclasses.replace(twice, activations=bits))[maker] == 2 * numbers
    bits[readers] = 32
    assert cells.conversions(dataclasses.replace(twice, activations=bits))[maker] == numbers


def test_designs_hold_what_is_missing():
    """Every design holds the first missing cell, and all of them in fewer designs than cells."""
    cells = Cells.of(SPACE, (2,), "host")
    policies = [candidate(bits, [2] * len(SPACE.groups)).policy for bits in (8, 32)]
    policies += [candidate(bits).policy for bits in (8, 32)]
    missing = {share.cell for p in policies for own in cells.shares(p) for share in own}
    count, designs = len(missing), 0
    while missing:
        policy, held = cells.design(policies[0], wanted := sorted(missing))
        assert wanted[0] in held
        assert set(policy.kept.tolist()) <= {2, *SPACE.sizes.tolist()}
        assert len(set(policy.weights == 32)) == 1
        missing -= set(held)
        designs += 1
    assert designs < count / 2


def test_a_table_is_filled_for_many_at_once(monkeypatch):
    """Many candidates are a few measurements; what was prepared isn't measured again."""
    latency = table_latency(X[:1], nodes=(2,), **FEW)
    monkeypatch.setattr(latency, "_measure", lambda candidate, policy: latency_of(latency, policy))
    many = [candidate(8, np.minimum(n, SPACE.sizes)) for n in (2, 3, 4, 5, 6)]
    latency.prepare(many)
    filled = latency.fills
    assert 0 < filled < 8
    assert all(latency(one) > 0 for one in many)
    assert latency.fills == filled


def latency_of(latency, policy):
    latency.fills += 1
    return [1.0] * len(SPACE.sites)


def test_lost_boards():
    with pytest.raises(LatencyError, match=r"127\.0\.0\.1:9"):
        table_latency(X[:1], board="rpc://127.0.0.1:9", **FEW)(candidate(32))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("llvm-mca") is None, reason="llvm-mca is not installed")
def test_a_model_counts_cycles():
    """An A72 adds four products of floats in a cycle, and eight of bytes."""
    cycles = modelled_latency(X[:1], target="cortex-a72")
    macs = SPACE.macs(SPACE.uncompressed)[:2].sum()  # the last layer is too small for vectors
    whole = cycles(candidate(32))
    assert whole > macs / 4
    assert cycles(candidate(8)) > macs / 8
    assert cycles(candidate(32, [max(n // 2, 1) for n in SPACE.sizes])) < whole


@pytest.mark.slow
@pytest.mark.seconds(150)
@pytest.mark.skipif(shutil.which("llvm-mca") is None, reason="llvm-mca is not installed")
def test_a_table_of_modelled_cycles_agrees_with_the_model(tmp_path):
    """Cycles of 20 policies at random, in float, bytes and planes, by layer and by the whole."""
    target, x = "cortex-a72", X[:1]
    actions = Actions("both", 2)
    drawn = jax.random.uniform(jax.random.key(3), (20, len(SPACE.sites), actions.count))
    policies = [jax.tree.map(np.asarray, actions.policy(SPACE, one)) for one in drawn]
    many = [Candidate(policy, SPACE, CANDIDATES.smaller) for policy in policies]
    table = modelled_latency(x, target=target, nodes=(2, 4, 6, 8, 10, 12, 14), folder=tmp_path)
    table.prepare(many)
    exact = modelled_latency(x, target=target)
    errors = [abs(table(one) / exact(one) - 1) for one in many]
    assert np.median(errors) < 0.01
    assert max(errors) < 0.03
    again = modelled_latency(x, target=target, nodes=table._nodes, folder=tmp_path)
    assert [again(one) for one in many] == [table(one) for one in many]
    assert again.fills == 0


def test_planes_have_no_more_bits_than_codes():
    """A core that counts planes up to nine products of bits has no code of nine bits."""
    cells = dataclasses.replace(Cells.of(SPACE, (2,), "host"), worth=9)
    corners = {share.cell[2:] for share in cells.shares(widths(2, 3))[1]}
    assert corners == {(1, 1), (8, 1), (1, 8)}
    assert {share.cell[2:] for share in cells.shares(widths(8, 1))[1]} == {(8, 1)}


def test_codes_need_a_real_input():
    """Of zeros ranges are empty: the compiler would leave the layers out, and take no time."""
    with pytest.raises(ValueError, match="holds one number alone, 0"):
        modelled_latency(jnp.zeros_like(X[:1]))(candidate(8))


def test_a_table_of_cycles_says_what_it_needs(tmp_path):
    with pytest.raises(ValueError, match="a table has cycles, no ram"):
        modelled_latency(X[:1], of="ram", nodes=(2,))
    with pytest.raises(ValueError, match="needs nodes"):
        modelled_latency(X[:1], folder=tmp_path)


def test_layers_are_read_from_the_manifest(monkeypatch):
    """Nothing is compiled again; a kernel that was fused of two layers names both."""

    def f(params, x):
        scaled = jnp.sin(x * params["a"]["scale"]) * params["b"]["scale"]
        return jnp.tanh(scaled @ params["c"]["kernel"])

    params = {name: {"scale": jnp.ones(32)} for name in "ab"} | {"c": {"kernel": jnp.eye(32)}}
    bundle = deploy(f, (params, jnp.ones((1, 32))))
    assert bundle.check()
    for again in ("_example.lift", "_building.build"):
        monkeypatch.setattr(f"jaxeff_export.bundle.{again}", None)
    rows = Bundle.load(bundle.folder).explain()
    assert [row.layer for row in rows] == ["a, b", "c"]
    assert {row.kernel for row in rows} == {each.name for each in bundle.profile(**FEW)}
    assert all(row.instructions is None for row in rows)
    elementwise, product = rows
    assert elementwise.tile == ()
    # Of a result of one row and 32 columns: whole vectors of some.
    one, columns = product.tile
    assert one == 1
    assert columns > 1
    assert 32 % columns == 0
    assert f"1 × {columns}" in str(rows)


def test_a_manifest_without_calls_says_what_to_do():
    """As of an older version; one whose calls read what isn't there is refused."""
    bundle = deploy(lambda p, x: x * p, (jnp.ones(3), jnp.ones(3)))
    manifest = bundle.manifest
    with pytest.raises(BundleError, match="deploy it again"):
        kernel_calls(dataclasses.replace(manifest, calls=()), bundle.artifact, ())
    with pytest.raises(BundleError, match="differ in calls"):
        dataclasses.replace(manifest, calls=(("k", (7,)),)).require_artifact(bundle.artifact)


@pytest.mark.parametrize(
    ("names", "layers"),
    [
        (["p['conv1']['bias']", "p['conv1']['kernel']", "p['fc']['w']"], ("conv1", "fc")),
        (["p['arrays']['s/c/codes']", "p['arrays']['s/c/bias']"], ("s/c",)),
        (["p.layers[0].weight", "p['w']"], ("layers/0", "w")),
        (["w"], ("w",)),
    ],
)
def test_layers_are_paths_without_their_last_part(names, layers):
    assert layers_of(names) == layers


@pytest.mark.slow
def test_a_bundle_explains_its_kernels():
    require("arm-none-eabi-gcc", "qemu-system-arm", "llvm-mca")
    g, params = candidate(8).small.integer(X[:1])
    bundle = deploy(g, (params, X[:1]), target="cortex-m4")
    rows = bundle.explain()
    models = bundle.model()
    assert [(r.kernel, r.instructions) for r in rows] == [(m.name, m.instructions) for m in models]
    assert list(dict.fromkeys(row.layer for row in rows)) == ["conv1", "fc1", "fc2"]
    assert "conv1" in str(rows)
    assert "q_conv2d_c_" in str(rows)  # which builder wrote it
    # What `dot_3px_2ch` and `dot_1px_4ch` hold; values that become codes are no product.
    assert {(r.layer, r.tile) for r in rows if "_c_" in r.kernel} == {
        ("conv1", (1, 3, 2)),
        ("fc1", (1, 1, 4)),
        ("fc2", (1, 1, 4)),
    }
    assert not any(row.tile for row in rows if "codes" in row.kernel)
