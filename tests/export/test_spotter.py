"""The command `spotter`: its parts against what they claim, and the whole way once, with tones."""

import json
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import require
from command_line import call, refused
from flax import nnx
from jaxeff_export.artifact import SignatureError
from jaxeff_export.cli import _learning_spotter as learning
from jaxeff_export.cli import _spotter as spotter

import jaxeff
from jaxeff import Gaussian, uncertainty


def test_sets_of_probabilities_are_those_of_lac():
    keys = jax.random.split(jax.random.key(0))
    logits = jax.random.normal(keys[0], (500, 6)) * 3
    truth = jax.random.categorical(keys[1], logits)
    probable = jax.nn.softmax(logits)
    for coverage in (0.5, 0.9):
        sets = [
            method.region(
                of[250:],
                uncertainty.conformalize(of[:250], truth[:250], method, coverage).threshold,
            )
            for method, of in ((spotter._Probable(), probable), (uncertainty.LAC(), logits))
        ]
        # The scores rise with each other, so that the thresholds are the same example's.
        np.testing.assert_array_equal(*sets)
    assert not spotter._Probable().region(probable, 0.05).any(1).all()  # some are empty


def test_only_a_word_that_is_alone_in_its_set_is_said():
    sets = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0], [0, 1, 0]], bool)
    assert spotter.alone(sets, 2).tolist() == [0, -1, -1, -1, -1, 1]


def test_varied_recordings_keep_their_form_and_differ():
    audio = np.random.default_rng(1).normal(0, 1000, (8, 16_000)).astype(np.int16)
    first, again = (
        spotter.varied(np.random.default_rng(0), audio, quiet) for quiet in (audio[:0], audio[:0])
    )
    np.testing.assert_array_equal(first, again)
    assert first.shape == audio.shape
    assert first.dtype == np.int16
    assert (first != audio).any(1).all()
    # Faint ones among loud noise, of which a half has some.
    assert np.abs(spotter.varied(np.random.default_rng(0), audio * 0, audio)).max(1).min() == 0


def test_weights_of_a_byte_are_near_the_posterior():
    weights = Gaussian(*jnp.abs(jax.random.normal(jax.random.key(0), (2, 30, 4))))
    decoded = spotter.decoded(spotter._coded(weights))
    np.testing.assert_allclose(decoded.mean, weights.mean, atol=float(weights.mean.max()) / 254)
    std = jnp.sqrt(weights.var)
    np.testing.assert_allclose(jnp.sqrt(decoded.var), std, atol=float(std.max()) / 253)


def test_a_word_is_called_once_in_a_second():
    said = np.full(100, spotter.NOBODY)
    said[10:20], said[22:30], said[60:70] = 3, 3, 1
    assert spotter.calls_of(said).tolist() == [10, 60]


@pytest.fixture
def start():
    """A network, its last layer, and the same weights as PyTorch lays them out."""
    _, params = spotter.network(49, 10, 4, 1)
    _, last = jaxeff.functional(nnx.Linear(4, 3, rngs=nnx.Rngs(1)))
    tensors = {}
    for place, layer in enumerate([*(params["layers"][n] for n in ("0", "2", "4", "6")), last]):
        kernel = np.asarray(layer["kernel"]) + 1
        axes = (3, 2, 0, 1) if kernel.ndim == 4 else (1, 0)
        # Names of any kind: the order tells.
        tensors[f"net.{'dcba'[place:] or 'fc'}.weight"] = kernel.transpose(axes)
        tensors[f"net.{'dcba'[place:] or 'fc'}.bias"] = np.asarray(layer["bias"]) - 1
    return params, last, tensors


def test_weights_of_pytorch_by_their_order(start, tmp_path):
    params, last, tensors = start
    np.savez(tmp_path / "weights.npz", **tensors)
    body, head = spotter.loaded(tmp_path / "weights.npz", params, last)
    for layer, of in ((body["layers"], params["layers"]), ({"": head}, {"": last})):
        for name in of:
            np.testing.assert_array_equal(layer[name]["kernel"], of[name]["kernel"] + 1)
            np.testing.assert_array_equal(layer[name]["bias"], of[name]["bias"] - 1)


def test_weights_that_do_not_fit_are_named(start, tmp_path):
    params, last, tensors = start

    def refuse(match, changed, path="weights.npz"):
        np.savez(tmp_path / "weights.npz", **changed)
        with pytest.raises(SignatureError, match=match):
            spotter.loaded(tmp_path / path, params, last)

    refuse("net.cba.weight", {**tensors, "net.cba.weight": np.zeros((4, 2, 3, 1))})
    refuse("net.cba.bias", {n: a for n, a in tensors.items() if n != "net.cba.bias"})
    refuse("expected 5 layers, found 6: .*norm", {**tensors, "norm.weight": np.zeros(4)})
    refuse("running_mean", {**tensors, "net.cba.running_mean": np.zeros(4)})
    refuse("No such file", tensors, "none.npz")
    refuse(r"expected a .pt, .pth or .npz", tensors, "weights.h5")


def test_a_pickle_with_code_is_refused(start, tmp_path):
    torch = pytest.importorskip("torch")
    params, last, tensors = start
    path = tmp_path / "weights.pt"
    torch.save({name: torch.from_numpy(a.copy()) for name, a in tensors.items()}, path)
    body, _ = spotter.loaded(path, params, last)
    np.testing.assert_array_equal(body["layers"]["0"]["bias"], tensors["net.dcba.bias"])
    # A number that is repeated by its strides, and a record that was deflated afterwards.
    torch.save({"weight": torch.zeros(1).expand(2**30)}, path)
    with pytest.raises(SignatureError, match="inflates to 4,294,967,296 bytes"):
        spotter.loaded(path, params, last)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(2**28 + 1))
    with pytest.raises(SignatureError, match="inflates to 268,435,457 bytes"):
        spotter.loaded(path, params, last)
    torch.save({"weight": print}, path)
    with pytest.raises(SignatureError, match="UnpicklingError"):
        spotter.loaded(path, params, last)


def test_what_is_no_word_or_no_microcontroller_is_a_line(tmp_path):
    assert refused(call("spotter", tmp_path), "of two words or more, found none")
    assert refused(call("spotter", "--target", "host"), "host is no microcontroller")


@pytest.mark.parametrize(("options", "rate"), [([], None), (["--learn", "--rate", "0.1"], 0.1)])
def test_it_learns_where_it_is_asked_to(options, rate, monkeypatch):
    asked = []

    def build(*args, **options):
        asked.append(options["rate"])
        raise SignatureError("far enough")

    monkeypatch.setattr(learning, "build", build)
    assert refused(call("spotter", *options), "far enough")
    assert asked == [rate]


def test_a_stream_is_cut_into_what_each_step_takes():
    audio, front = np.arange(32_000), spotter.FRONT
    cut = learning.windows(audio.astype(np.int16))
    assert cut.shape == (2 * spotter.SECOND, spotter.SAMPLES)
    # Frames stand where they do in a recording alone, of which the last step has the last.
    begins = spotter.NEW * np.arange(1, len(cut)) - front.hop
    np.testing.assert_array_equal(cut[1:, 0], begins)
    last = (front.frames(16_000) - 1) * front.hop + front.window
    assert cut[spotter.SECOND - 1, -1] == last - 1
    assert not cut[0, : front.hop].any()


def test_noise_is_as_loud_as_asked():
    audio, levels = np.zeros((2, 16_000), np.int16), np.array([100.0, 20_000.0])
    noise = learning.in_noise(np.random.default_rng(0), audio, levels)
    assert noise[0].std() == pytest.approx(100, rel=4 / np.sqrt(2 * 16_000))
    assert noise[1].min() == -(2**15)  # cut off


@pytest.mark.slow
@pytest.mark.seconds(90)
def test_one_library_tells_learns_and_watches(tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    key, words, rate = jax.random.key(0), spotter.words_of(None, 0), 0.01
    tells = spotter.train(key, words, spotter.SpotterRecipe(4, 16, 2, 12, 0.9), seed=0)
    step, params, first = learning.learning(key, tells, words, rate)
    # By hand: one told recording is one step of a softmax regression on what the body says of it.
    (audio, truth), second = words.test, spotter.SECOND
    hear, lesson = learning.hearing(step, params), np.stack([audio[3], 0 * audio[3]])
    after = hear(first, lesson, {second: int(truth[3])}).state["adapted"]["learnt"]["learnt"]
    seen = np.asarray(tells.body(tells.codes, spotter.features(audio[3:4])), np.float64)[0]
    was = first["adapted"]["learnt"]["learnt"]
    z = seen @ np.asarray(was["kernel"], np.float64) + np.asarray(was["bias"])
    delta = np.exp(z - z.max()) / np.exp(z - z.max()).sum() - np.eye(len(z))[truth[3]]
    np.testing.assert_allclose(
        after["kernel"], was["kernel"] - rate * np.outer(seen, delta), atol=1e-5
    )
    np.testing.assert_allclose(after["bias"], was["bias"] - rate * delta, atol=1e-5)
    facts, stream, told = learning.walk(step, params, first, words, 0)
    assert facts["right"] == facts["told"] == 3
    assert facts["word_after"] >= facts["word_before"]
    assert facts["alarm_dry"] is facts["alarm_usual"] is None
    assert facts["alarm_in_noise"] < facts["seconds"]
    bundle, spot, args = spotter.compiled(step, params, first, "cortex-m4", tmp_path / "bundle")
    library = bundle.export_c(tmp_path / "library", name="spotter")
    at = 4 * second  # the first lesson, and noise
    stream = np.concatenate([stream[: at * spotter.NEW], stream[-3 * 16_000 :]])
    told = {i: word for i, word in told.items() if i < at}
    steps, same = spotter.emulated(library, spot, args, stream, told)
    assert len(told) == 3
    assert steps == same > 170


@pytest.mark.slow
@pytest.mark.seconds(60)
def test_from_tones_to_a_page(tmp_path):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    result = call(
        "spotter", "--epochs", "12", "--width", "16", "--blocks", "2", "--bits", "4",
        "--coverage", "0.9", "--listened", "2", "--output", tmp_path / "out",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    of = json.loads((tmp_path / "out" / "report.json").read_text())["sections"]["spotter"]
    assert of["steps"] == of["same"] > 40
    assert of["accuracy"] > 0.4  # by chance an eighth
    # 320 recordings of the same kind as the 320 held out: four standard errors of both.
    assert abs(of["coverage"] - 0.9) < 4 * np.sqrt(0.09 * 2 / 320)
    # Where the truth is told the last third, in noise, is covered as asked: the bound of
    # `online_conformal` over 106 recordings, with scores from 0 to 1.
    assert of["online_last"] > 0.9 - (1 + 2 * 0.05) / (0.05 * 106)
    assert of["online_last"] >= of["fixed_last"]
    # A lower level never hears fewer words for wider sets: sets grow with the coverage.
    assert [at["set"] for at in of["levels"]] == sorted(at["set"] for at in of["levels"])
    assert of["flash"] < 32_000
    assert of["ram"] < 10_000
    assert "emulated steps decide as JAX does" in (tmp_path / "out" / "report.html").read_text()
    assert (tmp_path / "out" / "library" / "spotter.h").exists()
