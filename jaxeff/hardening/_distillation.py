"""Knowledge distillation: a noisy student learns from a clean teacher.

```python
import functools

from jaxeff.hardening import distilled
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, noisy

f, params, data = small_classifier()
teacher = functools.partial(f, params)                          # trained without noise; x -> logits
loss = distilled(noisy(f, {"*": Additive(0.5)}), teacher, keyed=True)       # for `fit`
```

The loss is `(1 - weight) CE(labels, student) + weight T^2 KL(softmax(teacher / T) ||
softmax(student / T))`; T^2 keeps the gradient's size independent of the temperature T.

Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", arXiv:1503.02531.
(`jaxeff.bayes.distill` is another method, which keeps a posterior's disagreement.)
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxeff.core import check_number, function_of_form, positive, probability, validate
from jaxeff.training import LabelledLoss, Loss, label_loss, normalized_call


@validate(teacher=function_of_form("teacher(inputs)"), temperature=positive, weight=probability)
def distilled(
    f: Callable[..., Any],
    teacher: Callable[[Any], Any],
    *,
    temperature: float = 4.0,
    weight: float = 0.9,
    keyed: bool = False,
    mutable: bool = False,
) -> Loss:
    """Makes the loss of a student that learns from labels and from another network.

    Args:
        f: The student, `f(params, x) -> logits` of shape `[batch, classes]`.
        teacher: `teacher(x) -> logits`; no gradient reaches it.
        temperature: Softens both distributions.
        weight: Share of the teacher, 0 to 1.
        keyed: Whether `f` takes a random key first.
        mutable: Whether `f` takes a state after its parameters and returns (logits, new state).

    Returns:
        A loss like that of `jaxeff.training.cross_entropy`, with metrics "accuracy" and
        "divergence", the mean KL divergence in nats at the given temperature.

    Raises:
        ValueError: The temperature isn't positive, or the weight not between 0 and 1.
    """
    check_number("temperature", temperature, low=1e-6)
    check_number("weight", weight, low=0, high=1)

    call = normalized_call(f, keyed=keyed, mutable=mutable)

    def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        x, labels = batch
        logits, state = call(key, params, state, x)
        hard = label_loss(logits, labels)
        # A target: no gradient reaches the teacher, even if it shares what is trained.
        taught = jax.nn.log_softmax(jax.lax.stop_gradient(teacher(x)) / temperature)
        learned = jax.nn.log_softmax(logits / temperature)
        soft = optax.losses.kl_divergence_with_log_targets(learned, taught).mean()
        # Gradients of the soft part fall as 1 / T**2 (Hinton et al., section 2): made up for here.
        value = (1 - weight) * hard + weight * temperature**2 * soft
        # Of the true labels, at temperature 1: what the student is used for.
        accuracy = jnp.mean(jnp.argmax(logits, axis=-1) == labels)
        return value, ({"accuracy": accuracy, "divergence": soft}, state)

    return LabelledLoss(loss, lambda *args: call(*args)[0])
