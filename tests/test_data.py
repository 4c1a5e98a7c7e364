"""What data are is decided in one place: what comes, what is wanted, and who asks."""

import warnings

import jax
import numpy as np
import optax
import pytest

import jaxeff
from jaxeff import bayes, compression, core, robustness, training, uncertainty
from jaxeff.core import DataWarning
from tests.bad_arguments.network import LOSS, PARAMS, X, Y, f

KEY = jax.random.key(0)
RUN = {"optimizer": optax.sgd(1e-3), "epochs": 1, "batch_size": 6, "progress": False}


def said(call, kind=(TypeError, ValueError)):
    with pytest.raises(kind) as caught:
        call()
    assert len(str(caught.value)) <= 500
    return str(caught.value)


def test_images_in_another_order_of_axes_are_told_the_site_and_the_sizes():
    told = said(lambda: compression.ptq(f, PARAMS, X.transpose(0, 3, 1, 2)), core.MisfitError)
    assert told.startswith("ptq: batches float32[12, 1, 4, 5] doesn't fit f at fc1 (kernel ")
    assert "channels come first" in told
    assert "float32[12, 4, 5, 1]" in told
    told = said(lambda: jaxeff.summary(f, PARAMS, X[0]))
    assert told.startswith("summary: args float32[4, 5, 1]")
    assert "batch axis" in told
    told = said(lambda: jaxeff.prune_plan(f, PARAMS, X[:, 1:], {}))
    assert "at fc2 (kernel float32[40, 3])" in told  # whose size is another's of four rows


def test_what_a_function_says_itself_is_the_cause():
    with pytest.raises(core.MisfitError) as caught:
        jaxeff.sites(f, PARAMS, X[0])
    assert "ndim" in str(caught.value.__cause__)


def test_right_data_are_traced_no_second_time():
    calls = []

    def counted(params, x):
        calls.append(x.shape)
        return f(params, x)

    jaxeff.sites(counted, PARAMS, X)
    assert len(calls) == 1


def test_a_network_for_a_loss_and_swapped_data():
    told = said(lambda: training.fit(KEY, f, PARAMS, (X, Y), **RUN))
    assert "cross_entropy(f)" in told
    for swapped in (
        lambda: training.fit(KEY, LOSS, PARAMS, (Y, X), **RUN),
        lambda: bayes.svi(KEY, f, PARAMS, (Y, X), **RUN),
        lambda: robustness.noisy_accuracy(KEY, f, PARAMS, (Y, X), {"fc1": noise()}),
    ):
        told = said(swapped)
        assert "labels" in told
        assert "each other's place" in told


def noise():
    return jaxeff.Additive(np.ones(2, np.float32))


def test_a_function_that_closes_over_its_parameters():
    told = said(lambda: compression.ptq(lambda x: f(PARAMS, x), X, X))
    assert "closed over" in told


def test_labels_that_could_become_some():
    for labels, way_out in (
        (np.eye(3)[Y], "argmax"),
        (Y[:, None], "[..., 0]"),
        (Y.astype(float), "astype(int)"),
        (Y + 1, "subtract 1"),
        (Y.tolist(), "np.asarray"),
    ):
        told = said(lambda labels=labels: training.fit(KEY, LOSS, PARAMS, (X, labels), **RUN))
        assert told.startswith("fit: data")
        assert way_out in told


def test_lists_of_images_and_of_numbers():
    told = said(lambda: bayes.laplace(KEY, f, PARAMS, (list(X), Y)))
    assert "list of 12 arrays of shape [4, 5, 1]" in told
    assert "np.stack" in told


def test_an_error_names_the_call_that_was_made():
    wrong = (X, Y.astype(float))
    told = said(
        lambda: robustness.accuracy_curve(
            KEY, f, PARAMS, wrong, lambda level: {"fc1": jaxeff.Additive(level)}, np.ones(2)
        )
    )
    assert told.startswith("accuracy_curve: data")
    told = said(lambda: compression.ptq(f, PARAMS, X, spec={"fc1": jaxeff.Int(4), "no": None}))
    assert "calibrate" not in told


def test_a_result_for_a_spec_is_told_its_spec_and_prints_no_numbers():
    told = said(lambda: jaxeff.quantized(f, compression.calibrate(f, PARAMS, X, {})))
    assert ".spec" in told
    assert "Array" not in told


def test_inputs_of_another_scale_than_the_training_saw():
    result = training.fit(KEY, LOSS, PARAMS, (X, Y), **RUN)
    assert result.seen == (core.Extent(float(X.min()), float(X.max())),)
    raw = np.round(255 * X)
    curve = {"fc1": noise()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compression.ptq(f, result, X)  # a result stands for its parameters
        robustness.noisy_accuracy(KEY, f, result, (X, Y), curve)
        compression.ptq(f, result.params, raw)  # nothing is known of what these saw
    for call in (
        lambda: compression.ptq(f, result, raw),
        lambda: compression.calibrate(f, result, [raw], {"fc1": jaxeff.Int(4)}),
        lambda: robustness.noisy_accuracy(KEY, f, result, (raw, Y), curve),
    ):
        with pytest.warns(DataWarning, match="255.*training saw"):
            call()


def test_labels_of_one_class_and_probabilities_for_logits():
    with pytest.warns(DataWarning, match="all are 1"):
        training.fit(KEY, LOSS, PARAMS, (X, np.ones_like(Y)), **RUN)
    logits = f(PARAMS, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        uncertainty.msp(logits)
    with pytest.warns(DataWarning, match="probabilities, not logits"):
        uncertainty.energy(jax.nn.softmax(logits))


def test_accuracies_without_a_number_have_no_midpoint():
    levels = np.arange(6.0)
    assert "all of 6 are NaN" in said(lambda: robustness.fit_midpoint(levels, levels * np.nan))
