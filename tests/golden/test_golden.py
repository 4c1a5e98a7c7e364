"""Programs are what they were: see the package. `python -m tests.golden` compares all networks."""

import json

import jax
import pytest

from tests.golden import __main__ as command
from tests.golden.models import MODELS
from tests.golden.programs import TRANSFORMS, Model, hashes

KEPT = json.loads(command.KEPT.read_text())
of_this_jax = pytest.mark.skipif(
    KEPT["jax"] != jax.__version__, reason=f"programs are kept of JAX {KEPT['jax']}"
)


@of_this_jax
@pytest.mark.parametrize("name", ["small", "recurrent"])
@pytest.mark.seconds(60)
def test_programs_are_what_they_were(name):
    model = MODELS[name]()
    different = [t for t in TRANSFORMS if hashes(model, t) != KEPT["programs"][name][t]]
    assert not different, "if that is meant, say why and run `python -m tests.golden --write`"


def test_every_transform_of_a_network_is_kept():
    assert KEPT["programs"].keys() <= MODELS.keys()
    assert all(programs.keys() == TRANSFORMS.keys() for programs in KEPT["programs"].values())


def test_another_number_or_equation_is_another_program():
    def model(f):
        return Model(f, {"w": jax.numpy.ones((3, 2))}, (jax.numpy.ones((4, 3)),))

    first = hashes(model(lambda p, x: 2 * (x @ p["w"])), "moments")
    assert hashes(model(lambda p, x: 2 * (x @ p["w"])), "moments") == first
    assert hashes(model(lambda p, x: 3 * (x @ p["w"])), "moments") != first
    assert hashes(model(lambda p, x: x @ p["w"]), "moments") != first


def test_a_refusal_is_kept_by_its_words():
    def refused(params, x):
        return jax.lax.sort(x @ params["w"])

    arguments = {"w": jax.numpy.ones((3, 2))}, (jax.numpy.ones((4, 3)),)
    (words,) = hashes(Model(refused, *arguments), "moments")
    assert words.startswith("MomentsError")
