"""Uncertainty of predictions, its quality, and detection of OOD inputs.

All are pure functions of arrays that jit and vmap. Samples come first: ``[samples, batch,
classes]``. Entropies and likelihoods are in nats.

```python
import jax
from jaxeff import Gaussian, bayes
from jaxeff.nn import small_classifier
from jaxeff.uncertainty import auroc, decompose_logits, nll, predictive_log_probs

key, (f, params, (x, y)) = jax.random.key(0), small_classifier()
posterior = jax.tree.map(lambda w: Gaussian(w, 0.01 * w**2), params)
logits = bayes.predict(key, f, posterior, x)
inside = decompose_logits(logits)                  # total, aleatoric, epistemic
nll(jax.numpy.exp(predictive_log_probs(logits)), y)
outside = decompose_logits(bayes.predict(key, f, posterior, x[:, ::-1]))
auroc(inside.epistemic, outside.epistemic)
```

A decision is made of a score: `conformal` returns sets that hold the truth as often as was asked,
`selective` leaves what is uncertain to others, `tempered` makes confidence mean what it says. A
regression with an aleatoric head has variances instead: `decompose_regression`, and `euc` holds the
epistemic part to the sparsity of the training data.
"""

from jaxeff.uncertainty._conformal import APS as APS
from jaxeff.uncertainty._conformal import CQR as CQR
from jaxeff.uncertainty._conformal import LAC as LAC
from jaxeff.uncertainty._conformal import RAPS as RAPS
from jaxeff.uncertainty._conformal import AbsoluteResidual as AbsoluteResidual
from jaxeff.uncertainty._conformal import ConformalCalibration as ConformalCalibration
from jaxeff.uncertainty._conformal import ConformalMethod as ConformalMethod
from jaxeff.uncertainty._conformal import NormalizedResidual as NormalizedResidual
from jaxeff.uncertainty._conformal import PredictionInterval as PredictionInterval
from jaxeff.uncertainty._conformal import conformal as conformal
from jaxeff.uncertainty._conformal import conformalize as conformalize
from jaxeff.uncertainty._conformal import covered as covered
from jaxeff.uncertainty._conformal import online_conformal as online_conformal
from jaxeff.uncertainty._decomposition import Decomposition as Decomposition
from jaxeff.uncertainty._decomposition import RegressionUncertainty as RegressionUncertainty
from jaxeff.uncertainty._decomposition import aleatoric_mse as aleatoric_mse
from jaxeff.uncertainty._decomposition import decompose as decompose
from jaxeff.uncertainty._decomposition import decompose_logits as decompose_logits
from jaxeff.uncertainty._decomposition import decompose_regression as decompose_regression
from jaxeff.uncertainty._decomposition import dirichlet_decomposition as dirichlet_decomposition
from jaxeff.uncertainty._decomposition import dirichlet_probs as dirichlet_probs
from jaxeff.uncertainty._decomposition import evidence as evidence
from jaxeff.uncertainty._decomposition import mutual_information as mutual_information
from jaxeff.uncertainty._decomposition import prediction_mse as prediction_mse
from jaxeff.uncertainty._decomposition import predictive_entropy as predictive_entropy
from jaxeff.uncertainty._decomposition import predictive_log_probs as predictive_log_probs
from jaxeff.uncertainty._decomposition import softmax_entropy as softmax_entropy
from jaxeff.uncertainty._detection import BoxMargins as BoxMargins
from jaxeff.uncertainty._detection import Detections as Detections
from jaxeff.uncertainty._detection import Kept as Kept
from jaxeff.uncertainty._detection import PrecisionRecall as PrecisionRecall
from jaxeff.uncertainty._detection import average_precision as average_precision
from jaxeff.uncertainty._detection import box_iou as box_iou
from jaxeff.uncertainty._detection import detect as detect
from jaxeff.uncertainty._detection import match_detections as match_detections
from jaxeff.uncertainty._detection import mean_average_precision as mean_average_precision
from jaxeff.uncertainty._detection import mean_iou as mean_iou
from jaxeff.uncertainty._detection import nms as nms
from jaxeff.uncertainty._detection import precision_recall as precision_recall
from jaxeff.uncertainty._feature_scores import ASH as ASH
from jaxeff.uncertainty._feature_scores import DICE as DICE
from jaxeff.uncertainty._feature_scores import KNN as KNN
from jaxeff.uncertainty._feature_scores import DenseHead as DenseHead
from jaxeff.uncertainty._feature_scores import Mahalanobis as Mahalanobis
from jaxeff.uncertainty._feature_scores import ReAct as ReAct
from jaxeff.uncertainty._feature_scores import ViM as ViM
from jaxeff.uncertainty._feature_scores import ash as ash
from jaxeff.uncertainty._feature_scores import dense_head as dense_head
from jaxeff.uncertainty._feature_scores import dice as dice
from jaxeff.uncertainty._feature_scores import knn as knn
from jaxeff.uncertainty._feature_scores import mahalanobis as mahalanobis
from jaxeff.uncertainty._feature_scores import react as react
from jaxeff.uncertainty._feature_scores import relative_mahalanobis as relative_mahalanobis
from jaxeff.uncertainty._feature_scores import scored as scored
from jaxeff.uncertainty._feature_scores import vim as vim
from jaxeff.uncertainty._figures import draw_plane as draw_plane
from jaxeff.uncertainty._figures import draw_regression as draw_regression
from jaxeff.uncertainty._figures import draw_reliability as draw_reliability
from jaxeff.uncertainty._figures import draw_risk_coverage as draw_risk_coverage
from jaxeff.uncertainty._gaussian_logits import CalibrationWarning as CalibrationWarning
from jaxeff.uncertainty._gaussian_logits import Temperature as Temperature
from jaxeff.uncertainty._gaussian_logits import from_gaussian as from_gaussian
from jaxeff.uncertainty._gaussian_logits import predict_probs as predict_probs
from jaxeff.uncertainty._gaussian_logits import probit_logits as probit_logits
from jaxeff.uncertainty._gaussian_logits import raw_variance as raw_variance
from jaxeff.uncertainty._gaussian_logits import sample_logits as sample_logits
from jaxeff.uncertainty._gaussian_logits import temperature_scale as temperature_scale
from jaxeff.uncertainty._gaussian_logits import tempered as tempered
from jaxeff.uncertainty._logit_scores import energy as energy
from jaxeff.uncertainty._logit_scores import generalized_entropy as generalized_entropy
from jaxeff.uncertainty._logit_scores import max_logit as max_logit
from jaxeff.uncertainty._logit_scores import moment_information as moment_information
from jaxeff.uncertainty._logit_scores import msp as msp
from jaxeff.uncertainty._logit_scores import odin as odin
from jaxeff.uncertainty._martingale import Exchangeability as Exchangeability
from jaxeff.uncertainty._martingale import exchangeability as exchangeability
from jaxeff.uncertainty._monitor import Monitoring as Monitoring
from jaxeff.uncertainty._monitor import MonitorState as MonitorState
from jaxeff.uncertainty._monitor import Reading as Reading
from jaxeff.uncertainty._monitor import monitor as monitor
from jaxeff.uncertainty._monitor import watched as watched
from jaxeff.uncertainty._out_of_domain import OOD_QUANTILE as OOD_QUANTILE
from jaxeff.uncertainty._out_of_domain import aupr as aupr
from jaxeff.uncertainty._out_of_domain import auroc as auroc
from jaxeff.uncertainty._out_of_domain import euc as euc
from jaxeff.uncertainty._out_of_domain import fpr95 as fpr95
from jaxeff.uncertainty._out_of_domain import negative_log_density as negative_log_density
from jaxeff.uncertainty._out_of_domain import out_of_domain as out_of_domain
from jaxeff.uncertainty._out_of_domain import sparsity_threshold as sparsity_threshold
from jaxeff.uncertainty._risk_control import CRC as CRC
from jaxeff.uncertainty._risk_control import LTT as LTT
from jaxeff.uncertainty._risk_control import RCPS as RCPS
from jaxeff.uncertainty._risk_control import EarlyExit as EarlyExit
from jaxeff.uncertainty._risk_control import ExitDecision as ExitDecision
from jaxeff.uncertainty._risk_control import Mondrian as Mondrian
from jaxeff.uncertainty._risk_control import MultiLabel as MultiLabel
from jaxeff.uncertainty._risk_control import extra_error as extra_error
from jaxeff.uncertainty._risk_control import false_negative_rate as false_negative_rate
from jaxeff.uncertainty._scores import Reliability as Reliability
from jaxeff.uncertainty._scores import accuracy as accuracy
from jaxeff.uncertainty._scores import adaptive_ece as adaptive_ece
from jaxeff.uncertainty._scores import brier as brier
from jaxeff.uncertainty._scores import classwise_ece as classwise_ece
from jaxeff.uncertainty._scores import ece as ece
from jaxeff.uncertainty._scores import in_batches as in_batches
from jaxeff.uncertainty._scores import nll as nll
from jaxeff.uncertainty._scores import nll_from_log as nll_from_log
from jaxeff.uncertainty._scores import reliability as reliability
from jaxeff.uncertainty._selective import RiskCoverage as RiskCoverage
from jaxeff.uncertainty._selective import aurc as aurc
from jaxeff.uncertainty._selective import coverage_threshold as coverage_threshold
from jaxeff.uncertainty._selective import excess_aurc as excess_aurc
from jaxeff.uncertainty._selective import risk_coverage as risk_coverage
from jaxeff.uncertainty._selective import selective as selective
from jaxeff.uncertainty._tokens import TokenUncertainty as TokenUncertainty
from jaxeff.uncertainty._tokens import accepted_prefix as accepted_prefix
from jaxeff.uncertainty._tokens import sequence_entropy as sequence_entropy
from jaxeff.uncertainty._tokens import sequence_score as sequence_score
from jaxeff.uncertainty._tokens import token_uncertainty as token_uncertainty
