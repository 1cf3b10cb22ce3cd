"""The methods; a file has a paper, or a few that share most of their code.

Exporting a factory here is what registers it.
"""

from sparsefl_jax.algorithms.adjusting import fedmef as fedmef
from sparsefl_jax.algorithms.adjusting import fedrts as fedrts
from sparsefl_jax.algorithms.adjusting import fedtiny as fedtiny
from sparsefl_jax.algorithms.binarised import fedbat as fedbat
from sparsefl_jax.algorithms.binarised import fedmrn as fedmrn
from sparsefl_jax.algorithms.complement import complement as complement
from sparsefl_jax.algorithms.compressed import compressed as compressed
from sparsefl_jax.algorithms.compressed import quantized as quantized
from sparsefl_jax.algorithms.fedavg import fedavg as fedavg
from sparsefl_jax.algorithms.fedavg import fedprox as fedprox
from sparsefl_jax.algorithms.fedavg import scaffold as scaffold
from sparsefl_jax.algorithms.fedluar import fedluar as fedluar
from sparsefl_jax.algorithms.fedpm import fedpm as fedpm
from sparsefl_jax.algorithms.fedsparsify import fedsparsify_global as fedsparsify_global
from sparsefl_jax.algorithms.fedsparsify import fedsparsify_local as fedsparsify_local
from sparsefl_jax.algorithms.fiarse import fiarse as fiarse
from sparsefl_jax.algorithms.flasc import flasc as flasc
from sparsefl_jax.algorithms.flasc import rank_tiers as rank_tiers
from sparsefl_jax.algorithms.flash import jmwst as jmwst
from sparsefl_jax.algorithms.flash import nst as nst
from sparsefl_jax.algorithms.flash import sensitivity as sensitivity
from sparsefl_jax.algorithms.hetero_flash import hetero_jmwst as hetero_jmwst
from sparsefl_jax.algorithms.hetero_flash import hetero_spdst as hetero_spdst
from sparsefl_jax.algorithms.masked import magnitude as magnitude
from sparsefl_jax.algorithms.masked import pdst as pdst
from sparsefl_jax.algorithms.masked import spdst as spdst
from sparsefl_jax.algorithms.one_shot import grasp as grasp
from sparsefl_jax.algorithms.one_shot import snip as snip
from sparsefl_jax.algorithms.one_shot import ssfl as ssfl
from sparsefl_jax.algorithms.personal import ditto as ditto
from sparsefl_jax.algorithms.personal import finetune as finetune
from sparsefl_jax.algorithms.pqsu import pqsu as pqsu
from sparsefl_jax.algorithms.prunefl import prunefl as prunefl
from sparsefl_jax.algorithms.prunefl import prunefl_initial as prunefl_initial
from sparsefl_jax.algorithms.readjusting import feddst as feddst
from sparsefl_jax.algorithms.readjusting import fedspa as fedspa
from sparsefl_jax.algorithms.slices import fedrolex as fedrolex
from sparsefl_jax.algorithms.slices import fjord as fjord
from sparsefl_jax.algorithms.slices import heterofl as heterofl
from sparsefl_jax.algorithms.spafl import local_only as local_only
from sparsefl_jax.algorithms.spafl import spafl as spafl
from sparsefl_jax.algorithms.sparse_computing import sparsyfed as sparsyfed
from sparsefl_jax.algorithms.sparse_computing import zerofl as zerofl

ALGORITHMS = {name: value for name, value in vars().items() if callable(value)}
__all__ = list(ALGORITHMS)
