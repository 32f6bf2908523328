"""What needs ops: accumulation of cotangents, user functions, gradient checks."""

from sparsegrad.autograd import accumulate
from sparsegrad.autograd.checkpoint import checkpoint
from sparsegrad.autograd.function import Function, FunctionContext
from sparsegrad.autograd.functional import hessian, hvp, jacobian, jvp, vjp
from sparsegrad.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from sparsegrad.engine.anomaly import detect_anomaly, set_detect_anomaly
from sparsegrad.engine.differentiate import backward, grad

__all__ = [
    "Function",
    "FunctionContext",
    "GradcheckError",
    "accumulate",
    "backward",
    "checkpoint",
    "detect_anomaly",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "set_detect_anomaly",
    "vjp",
]
