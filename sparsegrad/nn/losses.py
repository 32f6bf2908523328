"""Losses as modules; each calls the function of `sg.nn.functional` that its doc names."""

from __future__ import annotations

from typing import Any, ClassVar

from sparsegrad import backends, create, ops, sampling
from sparsegrad.errors import ShapeError
from sparsegrad.nn import functional, init
from sparsegrad.nn.module import Module
from sparsegrad.nn.parameter import Parameter
from sparsegrad.ops.likelihood import check_reduction
from sparsegrad.tensor import Tensor, as_tensor

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "BPRLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "MarginRankingLoss",
    "NLLLoss",
    "PoissonNLLLoss",
    "SampledSoftmaxLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "TripletMarginLoss",
]


class _Loss(Module):
    """A reduction, checked at once."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        check_reduction(type(self).__name__, reduction)
        self.reduction = reduction

    def _constant(self, name: str, value: Any) -> None:
        """A buffer, so that it moves with the module."""
        self.register_buffer(name, None if value is None else as_tensor(value))

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class CrossEntropyLoss(_Loss):
    """Logits (n, C) against classes (n,), probabilities (n, C), or a SparseTensor (n, C) of a few
    probabilities a row; see `functional.cross_entropy`.

    >>> import sparsegrad as sg
    >>> sg.nn.CrossEntropyLoss()(sg.zeros(3, 2), sg.tensor([0, 1, 1]))
    tensor(0.6931472)
    """

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        self._constant("weight", weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, logits: Any, target: Any) -> Any:
        """logits (n, C), target (n,) or (n, C) -> (), or (n,) for reduction "none"."""
        return functional.cross_entropy(
            *(logits, target, self.weight, self.ignore_index),
            *(self.reduction, self.label_smoothing),
        )


class BCEWithLogitsLoss(_Loss):
    """Logits against probabilities of one shape, dense or at the entries of a SparseTensor; see
    `functional.binary_cross_entropy_with_logits`.

    >>> import sparsegrad as sg
    >>> sg.nn.BCEWithLogitsLoss()(sg.zeros(3), sg.tensor([0.0, 1.0, 1.0]))
    tensor(0.6931472)
    """

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self._constant("weight", weight)
        self._constant("pos_weight", pos_weight)

    def forward(self, x: Any, target: Any) -> Any:
        """One shape -> (), or that shape (of stored entries: (nnz, *D)) for reduction "none"."""
        return functional.binary_cross_entropy_with_logits(
            x, target, self.weight, self.pos_weight, self.reduction
        )


class MSELoss(_Loss):
    """Squared differences of one shape, dense or at the entries of a SparseTensor (the loss of a
    factorization of a matrix of which only some entries are known); see `functional.mse_loss`.

    >>> import sparsegrad as sg
    >>> users, items = sg.ones(3, 2), sg.ones(4, 2)
    >>> ratings = sg.coo([[0, 2], [1, 3]], [5.0, 2.0], (3, 4))
    >>> sg.nn.MSELoss()(sg.sddmm(users, items, ratings), ratings)
    tensor(4.5)
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, x: Any, target: Any) -> Any:
        """One shape -> (), or that shape (of stored entries: (nnz, *D)) for reduction "none"."""
        return functional.mse_loss(x, target, self.reduction)


class L1Loss(_Loss):
    """Absolute differences of one shape, dense or at the entries of a SparseTensor; see
    `functional.l1_loss`.

    >>> import sparsegrad as sg
    >>> sg.nn.L1Loss()(sg.zeros(3), sg.tensor([1.0, 2.0, 3.0]))
    tensor(2.)
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, x: Any, target: Any) -> Any:
        """One shape -> (), or that shape (of stored entries: (nnz, *D)) for reduction "none"."""
        return functional.l1_loss(x, target, self.reduction)


class SmoothL1Loss(_Loss):
    """Absolute differences, squared near 0; see `functional.smooth_l1_loss`. ValueError for
    beta < 0.

    >>> import sparsegrad as sg
    >>> sg.nn.SmoothL1Loss()(sg.zeros(2), sg.tensor([0.5, 3.0]))
    tensor(1.3125)
    """

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        if not beta >= 0:
            raise ValueError(f"SmoothL1Loss: beta must be >= 0, got {beta}")
        self.beta = beta

    def forward(self, x: Any, target: Any) -> Any:
        """One shape -> (), or that shape (of stored entries: (nnz, *D)) for reduction "none"."""
        return functional.smooth_l1_loss(x, target, self.reduction, self.beta)


class HuberLoss(_Loss):
    """Squares of small differences, absolute values of large ones; see `functional.huber_loss`.
    ValueError for delta <= 0.

    >>> import sparsegrad as sg
    >>> sg.nn.HuberLoss()(sg.zeros(2), sg.tensor([0.5, 3.0]))
    tensor(1.3125)
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        if not delta > 0:
            raise ValueError(f"HuberLoss: delta must be > 0, got {delta}")
        self.delta = delta

    def forward(self, x: Any, target: Any) -> Any:
        """One shape -> (), or that shape (of stored entries: (nnz, *D)) for reduction "none"."""
        return functional.huber_loss(x, target, self.reduction, self.delta)


class BCELoss(_Loss):
    """Probabilities against probabilities of one shape; see `functional.binary_cross_entropy`, and
    `BCEWithLogitsLoss`, which is more exact.

    >>> import sparsegrad as sg
    >>> sg.nn.BCELoss()(sg.full((3,), 0.5), sg.tensor([0.0, 1.0, 1.0]))
    tensor(0.6931472)
    """

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._constant("weight", weight)

    def forward(self, x: Any, target: Any) -> Any:
        """One shape -> (), or that shape (of stored entries: (nnz, *D)) for reduction "none"."""
        return functional.binary_cross_entropy(x, target, self.weight, self.reduction)


class KLDivLoss(_Loss):
    """Log-probabilities against probabilities of one shape; see `functional.kl_div`.

    >>> import sparsegrad as sg
    >>> p = sg.tensor([[0.5, 0.5]])
    >>> sg.nn.KLDivLoss("batchmean")(sg.log(p), p)
    tensor(0.)
    """

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__("mean" if reduction == "batchmean" else reduction)
        self.reduction, self.log_target = reduction, log_target

    def forward(self, x: Any, target: Any) -> Any:
        """One shape -> (), or that shape (of stored entries: (nnz, *D)) for reduction "none"."""
        return functional.kl_div(x, target, self.reduction, self.log_target)


class NLLLoss(_Loss):
    """Log-probabilities (n, C) or (n, C, *d) against classes (n,) or (n, *d); see `sg.nll_loss`.

    >>> import sparsegrad as sg
    >>> sg.nn.NLLLoss()(sg.log_softmax(sg.zeros(3, 2), 1), sg.tensor([0, 1, 1]))
    tensor(0.6931472)
    """

    def __init__(
        self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self._constant("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, log_probs: Any, target: Any) -> Any:
        """log_probs (n, C), target (n,) -> (), or (n,) for reduction "none"."""
        return functional.nll_loss(
            log_probs, target, self.weight, self.ignore_index, self.reduction
        )


class BPRLoss(_Loss):
    """Scores of chosen things against scores of others; see `functional.bpr_loss`.

    >>> import sparsegrad as sg
    >>> sg.nn.BPRLoss()(sg.zeros(3), sg.zeros(3))
    tensor(0.6931472)
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, positive: Any, negative: Any) -> Any:
        """Shapes that broadcast -> (), or their shape for reduction "none"."""
        return functional.bpr_loss(positive, negative, self.reduction)


class SampledSoftmaxLoss(_Loss):
    """The output layer x W^T + b of many classes, and its cross-entropy: over the true class and
    `n_samples` sampled ones in training mode, over all classes in evaluation mode.

    probabilities: (n_classes,), how often each class is sampled, such as how often it occurs; they
        are divided by their sum. None: uniform.

    `weight` (n_classes, in_features) starts uniform in ±1 / sqrt(in_features), `bias` zero. Their
    gradients store only the rows that a step looked at; see `functional.sampled_softmax_loss`.

    Raises ValueError for n_samples < 1 and for probabilities that are negative or sum to 0,
    ShapeError for probabilities of another shape.

    >>> import sparsegrad as sg
    >>> loss = sg.nn.SampledSoftmaxLoss(8, 50_000, n_samples=20)
    >>> loss(sg.ones(3, 8), [1, 2, 49_999]).backward()
    >>> loss.weight.grad.coalesce().nnz <= 23
    True
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        n_samples: int,
        probabilities: Any = None,
        bias: bool = True,
        reduction: str = "mean",
        dtype: Any = None,
    ) -> None:
        super().__init__(reduction)
        if n_samples < 1:
            raise ValueError(f"SampledSoftmaxLoss: n_samples must be at least 1, got {n_samples}")
        self.in_features, self.n_classes, self.n_samples = in_features, n_classes, n_samples
        self.weight = Parameter(create.empty(n_classes, in_features, dtype=dtype))
        self.register_parameter("bias", None)
        if bias:
            self.bias = Parameter(create.empty(n_classes, dtype=dtype))
        p = None if probabilities is None else ops.cast(as_tensor(probabilities), "float64")
        if p is not None and p.shape != (n_classes,):
            raise ShapeError(
                f"SampledSoftmaxLoss: expected probabilities ({n_classes},), got {p.shape}"
            )
        if p is not None and not (float(p.min()) >= 0 and 0 < float(p.sum()) < float("inf")):
            raise ValueError(
                "SampledSoftmaxLoss: probabilities must not be negative, and their sum not 0"
            )
        self._constant("probabilities", None if p is None else p / ops.sum(p))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew, and set the bias to zero."""
        bound = self.in_features**-0.5 if self.in_features else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.zeros_(self.bias)

    def sample(self) -> Tensor:
        """Classes (n_samples,), drawn with replacement."""
        device = self.weight.device
        if self.probabilities is None:
            return sampling.randint(0, self.n_classes, (self.n_samples,), device=device)
        xp = backends.for_array(self.weight.data).xp
        drawn = sampling.rand(self.n_samples, dtype="float64", device=device)
        upto = xp.cumsum(self.probabilities.data)
        # The last sum may round to less than 1, and classes of probability 0 are never drawn.
        return Tensor(xp.searchsorted(upto, drawn.data * upto[-1], side="right"))

    def logits(self, x: Any) -> Tensor:
        """x (n, in_features) -> (n, n_classes)."""
        out = x @ self.weight.T
        return out if self.bias is None else out + self.bias

    def forward(self, x: Any, target: Any) -> Tensor:
        """x (n, in_features), target (n,) -> (), or (n,) for reduction "none"."""
        if not self.training:
            return functional.cross_entropy(self.logits(x), target, reduction=self.reduction)
        return functional.sampled_softmax_loss(
            *(x, self.weight, target, self.sample(), self.bias, self.probabilities),
            reduction=self.reduction,
        )

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.n_classes}, n_samples={self.n_samples}"


class _Simple(_Loss):
    """Calls `functional.<name>` with hyperparameters that it was made with."""

    _op: str
    _usual: ClassVar[dict[str, Any]]

    def __init__(self, *args: Any, reduction: str = "mean", **kwargs: Any) -> None:
        super().__init__(reduction)
        given = dict(zip(self._usual, args, strict=False)) | kwargs
        if len(args) > len(self._usual) or (unknown := sorted(set(given) - set(self._usual))):
            found = f"{len(args)} positional ones" if len(args) > len(self._usual) else unknown[0]
            takes = ", ".join([*self._usual, "reduction"])
            raise TypeError(f"{type(self).__name__}: takes {takes}, got {found}")
        self.options = self._usual | given

    def forward(self, *tensors: Any) -> Any:
        """Tensors as the function takes them -> (), or losses for reduction "none"."""
        loss = getattr(functional, self._op)
        return loss(*tensors, **self.options, reduction=self.reduction)

    def extra_repr(self) -> str:
        named = [f"{name}={value!r}" for name, value in self.options.items()]
        return ", ".join([*named, super().extra_repr()])


class MarginRankingLoss(_Simple):
    """max(0, margin - target (x1 - x2)), margin = 0; see `functional.margin_ranking_loss`.

    >>> import sparsegrad as sg
    >>> sg.nn.MarginRankingLoss(0.5)(sg.tensor([1.0]), sg.tensor([2.0]), sg.tensor([1]))
    tensor(1.5)
    """

    _op, _usual = "margin_ranking_loss", {"margin": 0.0}


class HingeEmbeddingLoss(_Simple):
    """x, or max(0, margin - x), margin = 1; see `functional.hinge_embedding_loss`.

    >>> import sparsegrad as sg
    >>> sg.nn.HingeEmbeddingLoss(2.0)(sg.tensor([0.5, 0.5]), sg.tensor([1, -1]))
    tensor(1.)
    """

    _op, _usual = "hinge_embedding_loss", {"margin": 1.0}


class SoftMarginLoss(_Simple):
    """log(1 + exp(-target x)); see `functional.soft_margin_loss`.

    >>> import sparsegrad as sg
    >>> sg.nn.SoftMarginLoss()(sg.zeros(2), sg.tensor([1, -1]))
    tensor(0.6931472)
    """

    _op, _usual = "soft_margin_loss", {}


class CosineEmbeddingLoss(_Simple):
    """1 - cos(x1, x2), or max(0, cos(x1, x2) - margin), margin = 0; see
    `functional.cosine_embedding_loss`.

    >>> import sparsegrad as sg
    >>> x = sg.tensor([[1.0, 0.0]])
    >>> sg.nn.CosineEmbeddingLoss(0.25)(x, x, sg.tensor([-1]))
    tensor(0.75)
    """

    _op, _usual = "cosine_embedding_loss", {"margin": 0.0}


class TripletMarginLoss(_Simple):
    """max(0, margin + |anchor - positive| - |anchor - negative|), margin = 1, p = 2; see
    `functional.triplet_margin_loss`.

    >>> import sparsegrad as sg
    >>> a, far = sg.zeros(1, 2), sg.tensor([[3.0, 4.0]])
    >>> sg.nn.TripletMarginLoss(margin=2.0, eps=0.0)(a, far, a)
    tensor(7.)
    """

    _op = "triplet_margin_loss"
    _usual: ClassVar = {"margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False}


class PoissonNLLLoss(_Simple):
    """exp(x) - target x, log_input = True; see `functional.poisson_nll_loss`.

    >>> import sparsegrad as sg
    >>> sg.nn.PoissonNLLLoss()(sg.zeros(2), sg.tensor([1.0, 3.0]))
    tensor(1.)
    """

    _op, _usual = "poisson_nll_loss", {"log_input": True, "full": False, "eps": 1e-8}


class GaussianNLLLoss(_Simple):
    """(log(var) + (x - target)² / var) / 2; see `functional.gaussian_nll_loss`.

    >>> import sparsegrad as sg
    >>> sg.nn.GaussianNLLLoss()(sg.zeros(2), sg.tensor([1.0, 3.0]), sg.ones(2))
    tensor(2.5)
    """

    _op, _usual = "gaussian_nll_loss", {"full": False, "eps": 1e-6}
