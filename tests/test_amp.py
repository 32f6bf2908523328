"""Mixed precision: what is cast, what is not, and the scaling of losses."""

import sys

import numpy as np
import pytest

import sparsegrad as sg
from sparsegrad import nn, optim
from sparsegrad.autograd import autocast as lists
from sparsegrad.engine.primitive import registry

F = nn.functional
rng = np.random.default_rng(0)


def numbers(*shape):
    return sg.tensor(rng.standard_normal(shape).astype("f4"))


def sparse(fmt="csr", **options):
    A = sg.random_sparse(5, 4, 0.6, format=fmt)
    return A.requires_grad_() if options.get("requires_grad") else A


X, Y = numbers(5, 4), numbers(4, 3)
GRAPH = sg.random_sparse(5, 5, 0.4)

PRODUCTS = {
    "matmul": lambda: X @ Y,
    "matvec": lambda: X @ Y[:, 0],
    "linear": lambda: nn.Linear(4, 3)(X),
    "einsum": lambda: sg.einsum("ij,jk->ik", X, Y),
    "conv1d": lambda: sg.conv1d(numbers(2, 3, 8), numbers(4, 3, 3)),
    "spmm": lambda: sparse() @ Y,
    "spmm from the left": lambda: numbers(3, 5) @ sparse(),
    "spmm with bias": lambda: sg.spmm(sparse(), Y, bias=numbers(3), activation="relu"),
    "spmm max": lambda: sg.spmm(sparse(), Y, reduce="max"),
    "sddmm": lambda: sg.sddmm(X, numbers(4, 4), sparse()),
    "spgemm": lambda: sparse() @ sg.random_sparse(4, 4, 0.5),
    "SparseLinear": lambda: nn.SparseLinear(4, 3)(X),
    "GCNConv": lambda: nn.GCNConv(4, 3, bias=False)(X, GRAPH),
    "GCNConv with bias": lambda: nn.GCNConv(4, 3, activation="relu")(X, GRAPH),
}
SUMS = {
    "sum": lambda h: h.sum(),
    "mean": lambda h: h.mean(1),
    "softmax": lambda h: sg.softmax(h, 1),
    "log_softmax": lambda h: sg.log_softmax(h, 1),
    "logsumexp": lambda h: sg.logsumexp(h, 1),
    "exp": sg.exp,
    "pow": lambda h: h**2.0,
    "cross_entropy": lambda h: F.cross_entropy(h, sg.tensor([0, 1, 2, 1, 0])),
    "mse_loss": lambda h: F.mse_loss(h, h * 2),
    "bce": lambda h: F.binary_cross_entropy_with_logits(h, sg.ones(5, 3)),
    "bpr": lambda h: F.bpr_loss(h, -h),
    "norm": lambda h: sg.linalg.norm(h),
    "sparse softmax": lambda h: sg.softmax(h.to_sparse("csr"), 1),
    "sparse sum": lambda h: h.to_sparse("csr").sum(1),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_in_16_bits(name):
    sg.manual_seed(0)
    expected = PRODUCTS[name]()
    sg.manual_seed(0)
    with sg.amp.autocast():
        found = PRODUCTS[name]()
    assert (expected.dtype, found.dtype) == (sg.float32, sg.float16)
    assert PRODUCTS[name]().dtype == sg.float32  # and the mode is over


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_in_bfloat16(name):
    pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16")
    with sg.amp.autocast(dtype=sg.bfloat16):
        out = PRODUCTS[name]()
        total = (out.values if isinstance(out, sg.SparseTensor) else out).sum()
    assert (out.dtype, total.dtype) == (sg.bfloat16, sg.float32)


def test_training_in_bfloat16():
    """Without a scaler: its range is that of float32."""
    pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16")
    sg.manual_seed(0)
    model = nn.Sequential(nn.SparseLinear(4, 16, density=0.5), nn.ReLU(), nn.Linear(16, 1))
    optimizer, losses = optim.Adam(model.parameters(), lr=0.02), []
    x = sg.randn(64, 4)
    for _ in range(60):
        optimizer.zero_grad()
        with sg.amp.autocast(dtype=sg.bfloat16):
            loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    assert {p.grad.dtype for p in model.parameters()} == {np.dtype("f4")}


@pytest.mark.parametrize("name", SUMS)
def test_sums_and_losses_are_in_32_bits(name):
    with sg.amp.autocast():
        h = X @ Y
        assert SUMS[name](h).dtype == sg.float32
    assert h.dtype == sg.float16


def test_numbers_are_those_of_16_bit_inputs_summed_in_32():
    A, x = sg.random_sparse(30, 4000, 0.5), sg.tensor(rng.random((4000, 2)).astype("f4"))
    with sg.amp.autocast():
        found = A @ x
    exact = A.to_dense().data.astype("f2").astype("f8") @ x.data.astype("f2").astype("f8")
    np.testing.assert_allclose(found.data.astype("f8"), exact, rtol=2e-3, atol=0.1)


def test_what_is_never_cast():
    with sg.amp.autocast():
        assert (X.double() @ Y.double()).dtype == sg.float64
        assert (X @ Y.double()).dtype == sg.float64
        assert X.double().sum().dtype == sg.float64
        assert (sg.tensor([[1, 2]]) @ sg.tensor([[1], [2]])).dtype == sg.int64
        assert sg.tensor([1, 2]).sum().dtype == sg.int64
        assert (X + X).dtype == sg.float32
        assert (X @ Y + numbers(3)).dtype == sg.float32  # two dtypes meet in the wider
        assert sg.relu(X @ Y).dtype == sg.float16


def test_blocks_decorators_devices():
    with sg.amp.autocast():
        with sg.amp.autocast(enabled=False):
            assert not sg.amp.is_autocast_enabled() and (X @ Y).dtype == sg.float32
        assert sg.amp.is_autocast_enabled() and (X @ Y).dtype == sg.float16
        with sg.amp.autocast("cuda"):
            assert (X @ Y).dtype == sg.float32
        with sg.amp.autocast("cpu"):
            assert (X @ Y).dtype == sg.float16

    @sg.amp.autocast()
    def product():
        """Its own text."""
        return X @ Y

    assert product().dtype == sg.float16 and product.__doc__ == "Its own text."
    assert not sg.amp.is_autocast_enabled()


def test_autocast_errors():
    with pytest.raises(sg.DtypeError, match="float16 or bfloat16, got float32"):
        sg.amp.autocast(dtype=sg.float32)
    with pytest.raises(ValueError, match="device_type must be 'cpu' or 'cuda', got 'tpu'"):
        sg.amp.autocast("tpu")


def test_lists_name_primitives():
    assert set(lists._NARROW) | set(lists._WIDE) <= set(registry)
    assert not set(lists._NARROW) & set(lists._WIDE)


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
@pytest.mark.parametrize("inside", [True, False])
def test_ac_78_autocast(fmt, inside):
    """A float32 matrix under float16 autocast: gradients have the dtype of what they belong to."""
    sg.manual_seed(3)
    W, x = sparse(fmt, requires_grad=True), numbers(4, 3).requires_grad_()
    up = numbers(5, 3)
    with sg.amp.autocast():
        y = W @ x
        S = sg.sampled_addmm(W, y, x.T)
        loss = (y * up).sum() + S.sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    assert (y.dtype, loss.dtype) == (sg.float16, sg.float32)
    assert W.grad.dtype == x.grad.dtype == sg.float32
    found = W.grad.values.data, x.grad.data
    V, z = W.detach().requires_grad_(), x.detach().requires_grad_()
    h = V @ z
    ((h * up).sum() + sg.sampled_addmm(V, h, z.T).sum()).backward()
    for ours, exact in zip(found, (V.grad.values.data, z.grad.data), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("layer", [nn.GATConv, nn.GATv2Conv, nn.SAGEConv])
def test_graph_layers(layer):
    model = layer(4, 6)
    x = numbers(5, 4).requires_grad_()
    expected = model(x, GRAPH)
    with sg.amp.autocast():
        y = model(x, GRAPH)
        (y.sum()).backward()
    np.testing.assert_allclose(y.data.astype("f4"), expected.data, atol=2e-2)
    assert {p.grad.dtype for p in model.parameters()} == {x.grad.dtype} == {sg.dtypes.float32}


def test_checkpoints_are_computed_again_as_they_were():
    w = numbers(4, 4).requires_grad_()
    with sg.amp.autocast():
        y = sg.checkpoint(lambda x: sg.relu(x @ w) @ w, X)
    y.float().sum().backward()
    found, w.grad = w.grad, None
    with sg.amp.autocast():
        y = sg.relu(X @ w) @ w
    y.float().sum().backward()
    np.testing.assert_array_equal(found.data, w.grad.data)


# ---- scaling -----------------------------------------------------------------------------------
def embedding_and_loss(scale=1.0):
    """A table with a row-sparse gradient that has duplicates, and a dense layer."""
    sg.manual_seed(0)
    model = nn.ModuleDict({"table": nn.Embedding(10, 4), "out": nn.Linear(4, 1)})
    h = model["table"](sg.tensor([3, 3, 7]))
    return model, (model["out"](h) ** 2).mean() * scale


def test_gradients_are_those_without_scaling():
    model, loss = embedding_and_loss()
    other, same = embedding_and_loss()
    loss.backward()
    optimizer, scaler = optim.SGD(other.parameters(), lr=0.1), sg.amp.GradScaler()
    scaler.scale(same).backward()
    scaler.unscale_(optimizer)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert type(p.grad) is type(q.grad)
        np.testing.assert_array_equal(p.grad.to_dense().data if isinstance(p.grad, sg.SparseTensor)
                                      else p.grad.data,
                                      q.grad.to_dense().data if isinstance(q.grad, sg.SparseTensor)
                                      else q.grad.data)  # fmt: skip
    assert other["table"].weight.grad.nnz == 2


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["table", "out"])
def test_steps_that_are_not_finite_are_left_out(bad, where):
    model, loss = embedding_and_loss()
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    scaler = sg.amp.GradScaler(init_scale=8.0, growth_interval=2)
    before = [p.data.copy() for p in model.parameters()]
    scaler.scale(loss).backward()
    grad = model[where].weight.grad
    (grad.values if where == "table" else grad).data[0, 0] = bad
    assert scaler.step(optimizer) is None
    assert all((p.data == b).all() for p, b in zip(model.parameters(), before, strict=True))
    assert not optimizer.state
    scaler.update()
    assert scaler.get_scale() == 4.0


def test_the_scale_grows_and_shrinks():
    p = nn.Parameter(sg.ones(2))
    optimizer = optim.SGD([p], lr=1.0)
    scaler = sg.amp.GradScaler(init_scale=4.0, growth_interval=2, growth_factor=3.0)
    scales = []
    for factor in (1, 1, 1, np.inf, 1, 1):
        optimizer.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [4, 12, 12, 6, 6, 18]
    assert p.data.tolist() == [-4.0, -4.0]
    scaler.update(5.0)
    assert scaler.get_scale() == 5.0


def test_duplicates_are_summed_before_they_are_looked_at():
    """Each is finite, their sum is not."""
    table = nn.Parameter(sg.zeros(4, 1))
    optimizer = optim.SGD([table], lr=1.0)
    scaler = sg.amp.GradScaler(init_scale=1.0)
    big = sg.tensor([[3e38], [3e38]])
    scaler.scale((table.take(sg.tensor([1, 1])) * big).sum()).backward()
    scaler.step(optimizer)
    assert table.data.tolist() == [[0.0]] * 4


def test_small_gradients_survive():
    """What float16 rounds to zero: 1e-4 * 1e-4."""
    grads = []
    for scaler in (sg.amp.GradScaler(), sg.amp.GradScaler(enabled=False)):
        w = nn.Parameter(sg.full((1, 1), 1e-4))
        optimizer = optim.SGD([w], lr=0.0)
        with sg.amp.autocast():
            h = sg.full((1, 1), 1e-4) @ w
            loss = (h.float() * 1e-4).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        grads.append(w.grad.item())
    assert grads[0] == pytest.approx(1e-8, rel=1e-2) and grads[1] == pytest.approx(0, abs=6e-12)


def test_clipping_between_unscaling_and_the_step():
    model, loss = embedding_and_loss(100.0)
    optimizer, scaler = optim.SGD(model.parameters(), lr=1.0), sg.amp.GradScaler()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    assert nn.utils.clip_grad_norm_(model.parameters(), 1.0).item() > 1
    before = [p.data.copy() for p in model.parameters()]
    scaler.step(optimizer)
    moved = sum(((p.data - b) ** 2).sum() for p, b in zip(model.parameters(), before, strict=True))
    assert moved == pytest.approx(1.0, rel=1e-4)


def test_half_losses_are_scaled_in_32_bits():
    loss = sg.tensor([3.0, 4.0], dtype="float16")
    first, (second,) = sg.amp.GradScaler().scale((loss.sum(), [loss]))
    assert first.dtype == second.dtype == sg.float32 and first.item() == 7 * 65536


def test_scaler_state():
    scaler = sg.amp.GradScaler(init_scale=4.0, growth_interval=3)
    p = nn.Parameter(sg.ones(1))
    optimizer = optim.SGD([p])
    scaler.scale(p.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    other = sg.amp.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    assert other.state_dict()["_growth_tracker"] == 1 and other.get_scale() == 4.0
    off = sg.amp.GradScaler(enabled=False)
    off.load_state_dict(scaler.state_dict())
    assert off.state_dict() == {} and off.get_scale() == 1.0 and not off.is_enabled()
    off.unscale_(optimizer)
    off.update()


def test_scaler_errors():
    p = nn.Parameter(sg.ones(1))
    optimizer, scaler = optim.SGD([p]), sg.amp.GradScaler()
    with pytest.raises(sg.GraphError, match=r"update\(\) without a step"):
        scaler.update()
    scaler.scale(p.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(sg.GraphError, match="unscale_ was called already"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(sg.GraphError, match="step was called already"):
        scaler.step(optimizer)
    half = nn.Parameter(sg.ones(3, dtype="float16"))
    half.sum().backward()
    with pytest.raises(sg.DtypeError, match=r"shape \(3,\) is float16"):
        scaler.unscale_(optim.SGD([half]))
    for options in ({"init_scale": 0}, {"growth_factor": 1.0}, {"backoff_factor": 1.0}):
        with pytest.raises(ValueError, match="GradScaler: expected init_scale > 0"):
            sg.amp.GradScaler(**options)
    with pytest.raises(ValueError, match="growth_interval must be at least 1, got 0"):
        sg.amp.GradScaler(growth_interval=0)


# ---- on a device -------------------------------------------------------------------------------
@pytest.mark.device
@pytest.mark.filterwarnings("ignore::sparsegrad.errors.SparseEfficiencyWarning")
def test_a_step_on_a_device_is_that_on_the_cpu(device):
    def trained(where):
        sg.manual_seed(0)
        conv, table = nn.GCNConv(4, 3).to(where), nn.Embedding(6, 4).to(where)
        parameters = [*conv.parameters(), *table.parameters()]
        optimizer, scaler = optim.SGD(parameters, lr=0.5), sg.amp.GradScaler(init_scale=1024.0)
        A = sg.sparse_eye(5).to(where)
        for factor in (1.0, np.inf):
            optimizer.zero_grad()
            with sg.amp.autocast():
                out = conv(table(sg.tensor([0, 2, 2, 5, 1]).to(where)), A)
                loss = (out * out).mean() * factor
            assert (out.dtype, loss.dtype) == (sg.float16, sg.float32)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 512.0
        assert isinstance(table.weight.grad, sg.SparseTensor)
        return [p.cpu().data for p in parameters]

    for ours, expected in zip(trained(device), trained("cpu"), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.device
def test_scaling_waits_once(device):
    simulator = sys.modules.get("cudasim")
    if not simulator or not simulator.installed():
        pytest.skip("only the simulator counts how often the host waits")
    parameters = [nn.Parameter(sg.ones(3).to(device)) for _ in range(4)]
    optimizer, scaler = optim.SGD(parameters, lr=0.1), sg.amp.GradScaler()
    scaler.scale(sum((p * p).sum() for p in parameters)).backward()
    before = simulator.synchronisations()
    scaler.step(optimizer)
    scaler.update()
    assert simulator.synchronisations() - before == 1
