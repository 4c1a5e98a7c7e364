"""Bundles: right results in the right structure, and a clear refusal of everything else."""

import gc
import os
import resource
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import jaxeff_export
import ml_dtypes
import numpy as np
import pytest
from damaged import reseal
from flax import nnx
from jaxeff_export import (
    Bundle,
    BundleError,
    SignatureError,
    ToolchainError,
    deploy,
    deploy_artifact,
    export,
    resolve_target,
)
from jaxeff_export.artifact import add_checksum, digest, verify_checksum
from jaxeff_export.bundle.files import FILES, MANIFEST, pack_arrays
from small_network import inputs, mlp, parameters

import jaxeff
from jaxeff import compression
from jaxeff.moment_propagation import Gaussian
from jaxeff.nn import MLP

# Float32 sums of 16 products, reordered: the worst case is 16 roundings of the largest partial sum.
ROUNDING = 16 * np.finfo(np.float32).eps


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    return deploy(mlp, (parameters(), inputs()), path=tmp_path_factory.mktemp("bundles") / "mlp")


@pytest.fixture
def folder(deployed, tmp_path):
    """A copy to damage."""
    return shutil.copytree(deployed.folder, tmp_path / "copy")


def test_a_verdict_travels_with_a_bundle(folder):
    assert Bundle.load(folder).manifest.verdict == ""
    said = "variances within 6 % [of method='linear']"
    reseal(folder, verdict=said)
    assert Bundle.load(folder).example.verdict == said
    reseal(folder, verdict=3)
    with pytest.raises(BundleError, match="verdict"):
        Bundle.load(folder)


def rewrite(folder, name, content):
    """Replaces a file and its checksum."""
    manifest = Bundle.load(folder).manifest
    files = {**manifest.files, name: {"size": len(content), "sha256": digest(content)}}
    reseal(folder, files=files)  # before the file, as it reads the bundle
    (folder / name).write_bytes(content)


def assert_close(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=ROUNDING * float(np.abs(b).max()) * 4)


def test_runs_as_jax_does_on_inputs_it_was_not_made_with(deployed):
    x = inputs(seed=7)
    assert_close(deployed.run(x), mlp(parameters(), x))
    assert_close(deployed.run(np.asarray(x)), mlp(parameters(), x))


def test_a_loaded_bundle_rebuilds_the_structure_from_its_description(deployed):
    x = inputs(seed=7)
    result = Bundle.load(deployed.folder).run(x)
    assert isinstance(result["logits"], Gaussian)
    assert_close(result, mlp(parameters(), x))


def test_parameters_are_bound_at_run_time_not_compiled_in(folder):
    other = parameters(seed=5)
    bundle = Bundle.load(folder)
    names = [spec.name for spec in bundle.artifact.inputs]
    leaves = dict(zip(names, jax.tree.leaves(other), strict=False))
    taken = [np.asarray(leaves[spec.name]) for spec in bundle.manifest.parameters]
    assert len(taken) < len(jax.tree.leaves(other))  # one isn't read, and isn't stored
    rewrite(folder, "parameters.npz", pack_arrays(taken))
    rewrite(folder, "derived.npz", pack_arrays([np.square(other["w2"])]))
    x = inputs(seed=7)
    assert_close(Bundle.load(folder).run(x), mlp(other, x))


def test_squares_of_weights_are_in_the_bundle_and_not_in_the_library(deployed):
    (derived,) = deployed.manifest.derived
    assert (derived.shape, derived.dtype) == ((16, 4), "float32")
    names = [spec.name for spec in deployed.manifest.parameters]
    taken = [names[i] for i in deployed.manifest.operands if i < len(names)]
    assert taken == ["params['b1']", "params['w1'].mean", "params['w2']"]
    *_, w2, square = deployed.operands
    np.testing.assert_array_equal(square, np.square(w2))


def test_self_check_passes_and_can_fail(deployed, folder):
    check = deployed.check()
    assert check.passed
    assert 0 <= check.max_abs_error < 1e-4
    assert "agrees" in str(check)

    ((recorded_inputs, outputs, _),) = deployed.recorded
    wrong = [*outputs[:-1], outputs[-1] + np.float32(0.5)]
    rewrite(folder, "selfcheck.npz", pack_arrays([*recorded_inputs, *wrong]))
    failed = Bundle.load(folder).check()
    assert not failed.passed
    assert "result['logits'].var" in str(failed)
    assert failed.max_abs_error == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: (x[0],), r"input x has shape \(8,\).*compiled for \(2, 8\)"),
        (lambda x: (np.asarray(x, np.float64),), r"input x has dtype float64.*float32"),
        (lambda x: (), r"0 inputs were given, 1 are expected: x"),
        (lambda x: (x, x), r"2 inputs were given"),
        (lambda x: (Gaussian(x, x),), r"input x\.mean is not expected"),
        (lambda x: (None,), r"input x is missing"),
    ],
)
def test_wrong_inputs_are_named(deployed, change, message):
    with pytest.raises(SignatureError, match=message):
        deployed.run(*change(inputs()))


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
@pytest.mark.parametrize("damage", ["first", "middle", "last", "cut", "empty", "missing"])
def test_damage_is_refused_and_the_file_named(folder, name, damage):
    file = folder / name
    content = bytearray(file.read_bytes())
    if damage == "missing":
        file.unlink()
    elif damage in ("cut", "empty"):
        file.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    else:
        position = {"first": 0, "middle": len(content) // 2, "last": len(content) - 1}[damage]
        content[position] ^= 0x01
        file.write_bytes(content)
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        Bundle.load(folder)


def test_every_byte_of_the_manifest_counts(folder):
    """A digit changed in a shape is valid JSON; only the manifest's own checksum tells."""
    file = folder / MANIFEST
    content = file.read_bytes()
    assert content.count(b"16") > 1
    file.write_bytes(content.replace(b"16", b"17", 1))
    with pytest.raises(BundleError, match=r"manifest\.json is damaged: its checksum"):
        Bundle.load(folder)


def test_a_manifest_and_arrays_that_do_not_fit_are_refused(folder):
    rewrite(folder, "derived.npz", pack_arrays([np.zeros((4, 16), np.float32)]))
    with pytest.raises(BundleError, match=r"derived\.npz is damaged: .*\(4, 16\), not \(16, 4\)"):
        Bundle.load(folder)


def test_an_operand_that_is_not_bound_is_refused(folder):
    reseal(folder, operands=(0, 99))
    with pytest.raises(BundleError, match="an operand is no bound array"):
        Bundle.load(folder)


def test_a_library_damaged_after_loading_is_not_run(folder):
    bundle = Bundle.load(folder)
    (folder / "library.so").write_bytes(b"\x7fELF")
    with pytest.raises(BundleError, match=r"library\.so is damaged"):
        bundle.run(inputs())


def test_another_format_version_is_refused(folder):
    content = verify_checksum((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_bytes(add_checksum({**content, "format_version": 4}))
    with pytest.raises(BundleError, match=r"format version 4, this jaxeff reads 2 and 3"):
        Bundle.load(folder)


def test_another_architecture_is_refused(folder):
    reseal(folder, machine="riscv64", target_name="some-riscv")
    with pytest.raises(BundleError, match=r"for riscv64 \(some-riscv\), the board local is"):
        Bundle.load(folder).run(inputs())


def test_a_processor_without_the_instructions_is_refused(deployed, monkeypatch):
    reported = "jaxeff_export.targets._target._reported_features"
    monkeypatch.setattr(reported, lambda: frozenset({"none"}))
    with pytest.raises(BundleError, match=r"the board local lacks its .*; deploy for this"):
        Bundle.load(deployed.folder).run(inputs())


def test_another_tvm_is_refused(folder):
    versions = {**Bundle.load(folder).manifest.versions, "apache-tvm": "0.1"}
    reseal(folder, versions=versions)
    with pytest.raises(BundleError, match=r"compiled by TVM 0\.1, this is TVM"):
        Bundle.load(folder).run(inputs())


def test_what_is_no_bundle_is_refused(tmp_path):
    with pytest.raises(BundleError, match="not a folder"):
        Bundle.load(tmp_path / "nothing")
    with pytest.raises(BundleError, match=r"no readable manifest\.json"):
        Bundle.load(tmp_path)


def test_saving_copies_whole_or_not_at_all(deployed, tmp_path, monkeypatch):
    copy = deployed.save(tmp_path / "copy")
    assert_close(copy.run(inputs()), mlp(parameters(), inputs()))
    deployed.save(tmp_path / "copy")  # a bundle may be replaced
    assert [entry.name for entry in tmp_path.iterdir()] == ["copy"]

    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "precious").write_text("data")
    with pytest.raises(FileExistsError, match="holds other files"):
        deployed.save(foreign)
    assert [entry.name for entry in foreign.iterdir()] == ["precious"]


@pytest.mark.slow
def test_nothing_half_written_is_left(tmp_path, monkeypatch):
    def broken(arrays):
        raise OSError("no space left on device")

    monkeypatch.setattr("jaxeff_export.bundle._building.pack_arrays", broken)
    with pytest.raises(OSError, match="no space"):
        deploy(mlp, (parameters(), inputs()), path=tmp_path / "mlp")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def tiny_disk(tmp_path, monkeypatch):
    """A file system with room for eight pages, where temporary files go as well."""
    place = tmp_path / "tiny"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32k", "none", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    monkeypatch.setattr("tempfile.tempdir", str(place))
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk_under_the_compiler_is_an_error(tiny_disk, tmp_path):
    p, x = parameters(), inputs()
    (tiny_disk / "rest").write_bytes(bytes(6 << 12))  # what is left is too little for LLVM
    with pytest.raises(OSError, match=r"No space left.*/tiny/.*lib0\.o"):
        deploy(mlp, (p, x), path=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_full_disk_names_the_file_of_the_bundle(deployed, tmp_path, monkeypatch):
    copy = deployed.save(tmp_path / "copy")
    size = len((copy.folder / "library.so").read_bytes())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*/copy/library\.so'"):
            deployed.save(tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [entry.name for entry in tmp_path.iterdir()] == ["copy"]
    assert Bundle.load(copy.folder).manifest == copy.manifest


@pytest.mark.slow
def test_a_temporary_bundle_goes_with_its_object():
    bundle = deploy(mlp, (parameters(), inputs()))
    folder = bundle.folder
    assert bundle.check().passed
    del bundle
    gc.collect()
    assert not folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
def test_threads_that_share_a_bundle_get_their_own_results(tmp_path, cores):
    target = {**resolve_target("host"), "num-cores": cores}
    deploy(mlp, (parameters(), inputs()), target, path=tmp_path / "mlp")
    given = [np.asarray(inputs(seed=i)) for i in range(8)]
    alone = [jax.tree.leaves(Bundle.load(tmp_path / "mlp").run(x)) for x in given]
    bundle = Bundle.load(tmp_path / "mlp")  # that its first callers have to open
    started = threading.Barrier(len(given) + 1)

    def call(x):
        started.wait()
        return [jax.tree.leaves(bundle.run(x)) for _ in range(200)]

    def profile():
        started.wait()
        return [bundle.profile(number=1, repeat=1) for _ in range(3)]

    with ThreadPoolExecutor(len(given) + 1) as pool:
        profiles = pool.submit(profile)
        results = list(pool.map(call, given))
        names = [{row.name for row in rows} for rows in profiles.result()]
    wrong = [
        not np.array_equal(ours, own)
        for found, expected in zip(results, alone, strict=True)
        for leaves in found
        for ours, own in zip(leaves, expected, strict=True)
    ]
    assert sum(wrong) == 0
    assert (
        names[0] == names[1] == names[2] == {row.name for row in bundle.profile(number=1, repeat=1)}
    )


def test_a_result_is_not_overwritten_by_the_next_call(deployed):
    first, second = inputs(seed=3), inputs(seed=4)
    kept = jax.tree.leaves(deployed.run(first))
    before = [array.copy() for array in kept]
    deployed.run(second)
    for array, copied in zip(kept, before, strict=True):
        np.testing.assert_array_equal(array, copied)


def test_benchmark_and_profile(deployed):
    timing = deployed.benchmark(number=3, repeat=4)
    assert len(timing.times_ms) == 4
    assert 0 < min(timing.times_ms) <= timing.median_ms <= max(timing.times_ms)
    for timed in (deployed.benchmark, deployed.profile):
        with pytest.raises(ValueError, match="must be positive"):
            timed(number=0)

    operators = deployed.profile(number=2)
    assert sum(operator.share for operator in operators) == pytest.approx(1)
    assert all(operator.calls >= 1 and operator.ms > 0 for operator in operators)
    # Profiling leaves the bundle as it was.
    assert deployed.check().passed


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "bfloat16", "int32", "int8", "uint8", "bool"]
)
def test_dtypes_survive_the_road(dtype, tmp_path):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    with jax.enable_x64(True):
        p = jnp.asarray(np.array([1, 0, 3]), kind)
        x = jnp.asarray(np.array([2, 1, 0]), kind)
        bundle = deploy(lambda p, x: (p, jnp.concatenate([x, p])), (p, x), path=tmp_path / "b")
    loaded = Bundle.load(tmp_path / "b")
    first, second = loaded.run(np.asarray(x))
    assert first.dtype == second.dtype == kind
    np.testing.assert_array_equal(first, np.asarray(p))
    np.testing.assert_array_equal(second, np.concatenate([x, p]))
    assert bundle.check().max_abs_error == 0


@pytest.mark.slow
def test_scalars_and_no_parameters(tmp_path):
    bundle = deploy(
        lambda p, a, b: a * 2 + b.sum(), ({}, 3.0, jnp.arange(3.0)), path=tmp_path / "b"
    )
    result = bundle.run(np.float32(1.5), np.float32([1, 2, 3]))
    assert result.shape == ()
    assert result == np.float32(9.0)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "given"), [(0, "abc"), (1, "bc"), (2, "c"), (3, "")])
def test_parameters_are_as_many_as_is_said(tmp_path, count, given):
    def f(a, b, c):
        return jnp.square(a["scale"]) * b[0] + c

    x = {"scale": jnp.float32(3)}, [jnp.arange(3.0)], jnp.ones(3)
    bundle = deploy(f, x, path=tmp_path / "b", parameters=count)
    loaded = Bundle.load(tmp_path / "b")
    assert loaded.manifest.arguments == tuple(given)
    data = jax.tree.map(lambda leaf: np.asarray(leaf) + 1, x[count:])
    for one in (bundle, loaded):
        assert one.check().passed
        np.testing.assert_allclose(one.run(*data), f(*x[:count], *data), rtol=1e-6)
    again = loaded.example
    assert (again.parameters, len(again.bound)) == (count, count)


@pytest.mark.slow
def test_a_single_argument_is_neither_parameters_nor_data_unless_that_is_said(tmp_path):
    x = jnp.arange(3.0)
    with pytest.raises(SignatureError, match=r"x is the only argument.*parameters=1 or parame"):
        deploy(lambda x: x * 2, (x,))
    artifact = export(lambda x: x * 2, (x,))
    with pytest.raises(SignatureError, match="x is the only argument"):
        deploy_artifact(artifact, {"x": np.asarray(x)})
    with pytest.raises(SignatureError, match="parameters is 2, but of 1 arguments: x"):
        deploy_artifact(artifact, {"x": np.asarray(x)}, parameters=2)
    bundle = deploy_artifact(artifact, {"x": np.asarray(x)}, parameters=0)
    np.testing.assert_array_equal(bundle.run(np.float32([1, 2, 3])), np.float32([2, 4, 6]))


def test_deploy_refuses_what_it_cannot_check(tmp_path):
    p, x = parameters(), inputs()
    with pytest.raises(SignatureError, match=r"NaN in result from the example"):
        deploy(lambda p, x: jnp.log(x), (p, -jnp.abs(x)), path=tmp_path / "b")
    with pytest.raises(SignatureError, match="with values"):
        deploy(mlp, (p, jax.ShapeDtypeStruct((2, 8), jnp.float32)), path=tmp_path / "b")
    with pytest.raises(SignatureError, match=r"params\['key'\] is a typed PRNG key"):
        deploy(lambda params, x: x, ({"key": jax.random.key(0)}, x), path=tmp_path / "b")
    with pytest.raises(SignatureError, match=r"params\['act'\] is a str"):
        deploy(lambda params, x: x, ({"act": "relu"}, x), path=tmp_path / "b")
    with pytest.raises(SignatureError, match="args is empty"):
        deploy(mlp, ())
    with pytest.raises(SignatureError, match=r"x has shape \(0, 8\), an empty batch.*at least one"):
        deploy(mlp, (p, inputs()[:0]), path=tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_linker_is_named_before_the_work(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for target, package in (("host", "gcc"), ("cortex-a72", "gcc-aarch64-linux-gnu")):
        with pytest.raises(ToolchainError, match=rf"apt-get install {package}"):
            deploy(mlp, (parameters(), inputs()), target=target)


@pytest.mark.slow
def test_a_failing_linker_leaves_nothing(monkeypatch, tmp_path):
    linker = tmp_path / "cc"
    linker.write_text("#!/bin/sh\necho the disk is on fire >&2\nexit 1\n")
    linker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ToolchainError, match="could not link the library"):
        deploy(mlp, (parameters(), inputs()), path=tmp_path / "bundle")
    assert [entry.name for entry in tmp_path.iterdir()] == ["cc"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A network of codes and floats that its library takes in layouts of its own, and its data."""
    rng = np.random.default_rng(0)
    f, params = jaxeff.functional(MLP((12, 20, 10), rngs=nnx.Rngs(0)))
    x = rng.normal(size=(2, 12)).astype(np.float32)
    spec = compression.calibrate(f, params, [x], {"*:linear": compression.Int(8, 8)}).spec
    g = compression.integer(f, spec)
    w = jnp.asarray(rng.normal(size=(1, 1, 96, 24)), jnp.float32)
    images = jnp.asarray(rng.normal(size=(1, 7, 7, 96)), jnp.float32)

    def both(params, x, images):
        y = jax.lax.conv_general_dilated(
            images, params[1], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return g(params[0], x), y

    weights = g.convert(params, x), w
    path = tmp_path_factory.mktemp("bundles") / "packed"
    return deploy(both, (weights, x, images), path=path), weights, (x, images)


def test_a_packed_weight_is_stored_once_and_read_back_bit_for_bit(packed):
    bundle, weights, _ = packed
    if (beside := bundle.folder / "unpacked.npz").exists():
        # Biases, to which a processor without products of signed and unsigned bytes adds sums of
        # weights: no matrix.
        with np.load(beside) as arrays:
            assert all(arrays[name].ndim == 1 for name in arrays)
    assert bundle.manifest.placed
    for one, other in zip(
        Bundle.load(bundle.folder).unpacked, jax.tree.leaves(weights), strict=True
    ):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_bundle_of_packed_weights_is_saved_and_deployed_again_with_equal_bits(packed, tmp_path):
    bundle, _, data = packed
    saved = Bundle.load(bundle.save(tmp_path / "saved").folder)
    names = [spec.name for spec in saved.artifact.inputs]
    leaves = [*saved.unpacked, *jax.tree.leaves(data)]
    again = deploy_artifact(saved.artifact, dict(zip(names, leaves, strict=True)))
    light = jaxeff_export.load(saved.folder)
    for other in (saved, again, light):
        for a, b in zip(bundle.run(*data), other.run(*data), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_bundle_of_an_older_version_has_its_weights_as_they_were_given(packed, tmp_path):
    bundle, weights, data = packed
    folder = bundle.save(tmp_path / "older").folder
    names = {spec.name for spec in bundle.manifest.parameters}
    bound = zip(bundle.artifact.inputs, jax.tree.leaves(weights), strict=False)
    content = pack_arrays([np.asarray(leaf) for spec, leaf in bound if spec.name not in names])
    files = {name: facts for name, facts in bundle.manifest.files.items() if name != "places.npz"}
    files["unpacked.npz"] = {"size": len(content), "sha256": digest(content)}
    reseal(folder, files=files, placed={})
    (folder / "places.npz").unlink()
    (folder / "unpacked.npz").write_bytes(content)
    older = Bundle.load(folder)
    for one, other in zip(older.unpacked, jax.tree.leaves(weights), strict=True):
        np.testing.assert_array_equal(one, other)
    for a, b in zip(bundle.run(*data), older.run(*data), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda placed: {n: (99, *p[1:]) for n, p in placed.items()}, "names no derived array"),
        (lambda placed: {n: (p[0], p[1] + 1, p[2]) for n, p in placed.items()}, "leaves a number"),
        (lambda placed: {n: (0, *p[1:]) for n, p in placed.items()}, "places.npz is damaged"),
        (lambda placed: {}, "whether there is places.npz"),
    ],
)
def test_places_that_fit_no_array_are_refused(packed, tmp_path, change, message):
    folder = packed[0].save(tmp_path / "copy").folder
    reseal(folder, placed=change(packed[0].manifest.placed))
    with pytest.raises(BundleError, match=message):
        Bundle.load(folder)
