"""Modules, parameters and layers."""

import copy
import pickle

import numpy as np
import pytest

import sparsegrad as sg
from modules import as_function, dense, sparse
from sparsegrad import nn


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 2, bias=False)
        self.register_buffer("scale", sg.tensor([2.0]))

    def forward(self, x):
        return self.second(sg.relu(self.first(x))) * self.scale


# --- parameters --------------------------------------------------------------------------------


def test_parameter_is_a_leaf_and_its_results_are_plain_tensors():
    p = nn.Parameter([1.0, 2.0])
    assert isinstance(p, sg.Tensor) and p.requires_grad and p.is_leaf
    assert type(p * 2) is sg.Tensor
    assert not nn.Parameter([1.0], requires_grad=False).requires_grad


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
def test_sparse_parameter(fmt):
    A = sparse(4, 5, fmt).coalesce()
    p = nn.Parameter(A)
    assert isinstance(p, nn.Parameter) and isinstance(p, sg.SparseTensor)
    assert p.pattern is A.pattern and p.requires_grad and p.is_leaf
    (p @ dense(5, 2)).sum().backward()
    assert p.grad.pattern is p.pattern
    assert not isinstance(A, nn.Parameter)


def test_sparse_parameter_must_be_coalesced():
    with pytest.raises(sg.PatternError, match=r"coalesce\(\)"):
        nn.Parameter(sg.coo([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)))


@pytest.mark.parametrize("made", [lambda x: x * 2, lambda x: sg.to_sparse(x * 2)])
def test_parameter_refuses_the_result_of_an_op(made):
    with pytest.raises(sg.GraphError, match="detach"):
        nn.Parameter(made(dense(2, 2)))


def test_parameter_refuses_integers():
    with pytest.raises(sg.DtypeError):
        nn.Parameter(sg.tensor([1, 2]))


def test_parameter_of_implicit_ones_can_be_written():
    p = nn.Parameter(sg.coo([[0, 1], [1, 0]], None, (2, 2)))
    sg.optim.SGD([p], lr=0.5)
    (p.values * 1).sum().backward()
    sg.optim.SGD([p], lr=0.5).step()
    assert p.values.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
@pytest.mark.parametrize("make", [lambda: nn.Parameter([1.0]), lambda: nn.Parameter(sparse(2, 3))])
def test_parameters_stay_parameters_when_copied(copied, make):
    p = make()
    q = copied(p)
    assert type(q) is type(p) and isinstance(q, nn.Parameter) and q.requires_grad
    assert q is not p
    if isinstance(p, sg.SparseTensor):
        assert q.pattern.same_as(p.pattern) and q.values is not p.values


# --- modules -----------------------------------------------------------------------------------


def test_names_in_order():
    model = Two()
    assert [n for n, _ in model.named_parameters()] == [
        "first.weight",
        "first.bias",
        "second.weight",
    ]
    assert [n for n, _ in model.named_buffers()] == ["scale"]
    assert [n for n, _ in model.named_modules()] == ["", "first", "second"]
    assert list(model.children()) == [model.first, model.second]
    assert len(list(model.parameters())) == 3


def test_a_shared_parameter_is_listed_once_and_saved_under_both_names():
    model = Two()
    model.third = nn.Linear(4, 2, bias=False)
    model.third.weight = model.second.weight
    assert len(list(model.parameters())) == 3
    assert {"second.weight", "third.weight"} <= set(model.state_dict())


def test_reassigning_and_deleting():
    model = Two()
    model.first = nn.ReLU()
    assert [n for n, _ in model.named_parameters()] == ["second.weight"]
    model.note = 3
    model.note = nn.Parameter([1.0])
    assert "note" in dict(model.named_parameters()) and "note" not in model.__dict__
    del model.note
    with pytest.raises(AttributeError, match="note"):
        model.note
    model.second.weight = None
    assert list(model.parameters()) == []


def test_assigning_what_is_not_a_parameter():
    with pytest.raises(TypeError, match=r"Linear\.weight"):
        nn.Linear(2, 2).weight = sg.zeros(2, 2)


def test_forgotten_super_init():
    class Bad(nn.Module):
        def __init__(self):
            self.weight = nn.Parameter([1.0])

    with pytest.raises(AttributeError, match="super"):
        Bad()


def test_bad_names():
    model = Two()
    with pytest.raises(KeyError, match="empty"):
        model.register_buffer("a.b", None)
    with pytest.raises(KeyError, match="exists"):
        model.register_parameter("forward", None)
    with pytest.raises(TypeError, match="Parameter"):
        model.register_parameter("other", sg.zeros(2))


def test_train_and_eval_reach_everything():
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    assert not any(m.training for m in model.eval().modules())
    x = sg.ones(50)
    assert model(x) is x
    assert all(m.training for m in model.train().modules())


def test_apply_visits_children_first():
    seen = []
    model = Two().apply(seen.append)
    assert seen[-1] is model and set(seen[:-1]) == {model.first, model.second}


def test_zero_grad():
    model = Two()
    model(sg.ones(1, 3)).sum().backward()
    model.zero_grad(set_to_none=False)
    assert all((p.grad.data == 0).all() for p in model.parameters())
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_to_changes_dtype_in_place():
    model = Two()
    before = list(model.parameters())
    model(sg.ones(1, 3)).sum().backward()
    assert model.double() is model
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert {p.dtype.name for p in model.parameters()} == {"float64"}
    assert {p.grad.dtype.name for p in model.parameters()} == {"float64"}
    assert model.scale.dtype == sg.float64
    assert model(sg.ones(1, 3, dtype=sg.float64)).dtype == sg.float64
    with pytest.raises(sg.DtypeError):
        model.to(sg.int64)
    with pytest.raises(sg.DeviceError):
        model.to("cuda:7")
    assert model.to("cpu").scale.dtype == sg.float64


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_modules_can_be_copied(copied):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval()
    twin = copied(model)
    assert not twin.training and twin[0].weight is not model[0].weight
    np.testing.assert_array_equal(twin[0].weight.data, model[0].weight.data)
    twin.zero_grad()
    with sg.no_grad():
        twin[0].weight.zero_()
    assert model[0].weight.data.any()


def test_repr_shows_the_tree():
    text = repr(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    assert text == "Sequential(\n  (0): Linear(2, 3, bias=True)\n  (1): ReLU()\n)"


# --- state -------------------------------------------------------------------------------------


def test_state_dict_round_trip():
    a, b = Two(), Two()
    x = dense(5, 3).detach().float()
    assert not np.array_equal(a(x).detach().data, b(x).detach().data)
    assert b.load_state_dict(a.state_dict()) == ([], [])
    np.testing.assert_array_equal(a(x).detach().data, b(x).detach().data)
    assert b.first.weight.data is not a.first.weight.data


def test_state_dict_round_trip_of_sparse_parameters_and_buffers():
    class Masked(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.weight = nn.Parameter(sparse(3, 4, "csr").with_values(dense(4, seed=seed).data))
            self.register_buffer("graph", sparse(3, 3, seed=seed))

    a, b = Masked(0), Masked(0)
    with sg.no_grad():
        a.weight.values.fill_(7)
    state = pickle.loads(pickle.dumps(a.state_dict()))
    b.load_state_dict(state)
    assert b.weight.values.tolist() == [7.0] * 4
    other = Masked(1)
    kept = other.weight.values.data.copy()
    with pytest.raises(sg.PatternError, match="graph"):
        other.load_state_dict(state)
    np.testing.assert_array_equal(other.weight.values.data, kept)


def test_load_state_dict_changes_nothing_when_something_is_wrong():
    model = Two()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for tensor in state.values():
        tensor.fill_(9)
    bad = state | {"second.weight": sg.zeros(3, 3)}
    with pytest.raises(sg.ShapeError, match=r"second\.weight has shape \(2, 4\)"):
        model.load_state_dict(bad)
    with pytest.raises(TypeError, match="SparseTensor"):
        model.load_state_dict(state | {"scale": sg.coo([[0]], [1.0], (1,))})
    with pytest.raises(KeyError, match=r"missing \['scale'\]"):
        model.load_state_dict({k: v for k, v in state.items() if k != "scale"})
    assert model.scale.tolist() == [2.0] and not (model.first.weight.data == 9).any()
    partial = model.load_state_dict({"scale": sg.tensor([3.0]), "x": sg.zeros(1)}, strict=False)
    assert partial.unexpected_keys == ["x"] and len(partial.missing_keys) == 3
    assert model.scale.tolist() == [3.0]


def test_loading_counts_as_an_in_place_change():
    layer = nn.Linear(2, 2)
    y = layer(dense(3, 2).float()).sum()
    layer.load_state_dict(layer.state_dict())
    with pytest.raises(sg.GraphError, match="changed in place"):
        y.backward()


# --- layers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (3,), (2, 5, 3), (0, 3)])
def test_linear(shape, bias):
    layer = nn.Linear(3, 2, bias=bias, dtype=sg.float64)
    x = dense(*shape)
    expected = x.data @ layer.weight.data.T + (layer.bias.data if bias else 0)
    np.testing.assert_allclose(layer(x).detach().data, expected)
    fn, inputs = as_function(layer, x)
    assert sg.gradcheck(fn, inputs)
    assert sg.gradgradcheck(fn, inputs)


@pytest.mark.parametrize("fmt", ["coo", "csr", "csc"])
def test_linear_of_a_sparse_input(fmt):
    x = sparse(6, 3, fmt, requires_grad=True)
    layer = nn.Linear(3, 2, dtype=sg.float64)
    np.testing.assert_allclose(
        layer(x).detach().data, layer(x.detach().to_dense()).detach().data, rtol=1e-12
    )
    assert sg.gradcheck(*as_function(layer, x))


def test_linear_starts_as_in_pytorch():
    sg.manual_seed(0)
    layer = nn.Linear(100, 400)
    for p in (layer.weight, layer.bias):
        assert 0.09 < np.abs(p.data).max() <= 0.1
        assert abs(p.data.mean()) < 0.01
    sg.manual_seed(0)
    np.testing.assert_array_equal(nn.Linear(100, 400).weight.data, layer.weight.data)


@pytest.mark.parametrize(
    ("layer", "x"),
    [(nn.Linear(3, 2), sg.zeros(5, 4)), (nn.Linear(3, 2), sg.zeros(3, 5).sum())],
)
def test_linear_of_the_wrong_width(layer, x):
    with pytest.raises(sg.ShapeError, match=r"Linear: expected x \(\.\.\., 3\)"):
        layer(x)


def test_dropout_scales_what_it_keeps():
    sg.manual_seed(1)
    out = nn.Dropout(0.25)(sg.ones(1000)).data
    assert set(np.unique(out)) == {0.0, np.float32(4 / 3)}
    assert 0.2 < (out == 0).mean() < 0.3
    A = sparse(20, 20).double()
    B = nn.Dropout(0.5)(A)
    assert B.pattern is A.pattern and 0 < (B.values.data == 0).sum() < A.nnz
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        nn.Dropout(1.5)


def test_sequential():
    model = nn.Sequential({"a": nn.Linear(3, 4), "b": nn.ReLU(), "c": nn.Linear(4, 1)})
    assert next(n for n, _ in model.named_parameters()) == "a.weight"
    assert len(model) == 3 and list(model)[1] is model[1] is model.b
    part = model[:2]
    assert isinstance(part, nn.Sequential) and len(part) == 2 and part[0] is model[0]
    x = dense(2, 3).float()
    np.testing.assert_array_equal(
        model(x).detach().data, model.c(sg.relu(model.a(x))).detach().data
    )


def test_xavier_bound():
    w = nn.init.xavier_uniform_(sg.zeros(200, 100))
    assert 0.135 < np.abs(w.data).max() <= np.float32(np.sqrt(6 / 300))
    with pytest.raises(sg.ShapeError, match="xavier"):
        nn.init.xavier_uniform_(sg.zeros(3))


@pytest.mark.parametrize(
    ("fill", "std"),
    [
        (lambda w: nn.init.kaiming_uniform_(w), (2 / 100) ** 0.5),
        (lambda w: nn.init.kaiming_uniform_(w, a=1.0), (1 / 100) ** 0.5),
        (lambda w: nn.init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"), 0.1),
        (lambda w: nn.init.kaiming_normal_(w, nonlinearity="tanh"), 5 / 3 / 10),
        (lambda w: nn.init.xavier_normal_(w, gain=2.0), 2 * (2 / 300) ** 0.5),
    ],
)
def test_deviations_of_first_values(fill, std):
    w = fill(sg.zeros(200, 100))
    assert abs(w.std().item() / std - 1) < 0.03 and abs(w.mean().item()) < std / 20


def test_fans_of_a_convolution_count_its_window():
    w = nn.init.kaiming_uniform_(sg.zeros(200, 25, 2, 2), nonlinearity="relu")
    assert 0.97 * 0.06**0.5 < np.abs(w.data).max() <= np.float32(0.06**0.5)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda w: nn.init.kaiming_normal_(w[0]), sg.ShapeError, "kaiming_normal_: needs two"),
        (lambda w: nn.init.kaiming_uniform_(w, mode="in"), ValueError, "mode must be 'fan_in' or"),
        (lambda w: nn.init.calculate_gain("rely"), ValueError, "one of .*leaky_relu.* got 'rely'"),
    ],
)
def test_init_errors(call, error, text):
    with pytest.raises(error, match=text):
        call(sg.zeros(2, 2))


@pytest.mark.parametrize("act", [nn.ReLU, nn.Sigmoid, nn.Tanh])
def test_sequential_joins_an_activation_with_the_linear_before(act):
    linear, x = nn.Linear(3, 4), sg.randn(5, 3)
    model, apart = nn.Sequential(linear, act()), act()(linear(x))
    assert model(x).grad_fn.name == "bias_act" != apart.grad_fn.name
    np.testing.assert_allclose(model(x).detach().numpy(), apart.detach().numpy(), rtol=1e-6)
    found = [sg.grad((y * y).sum(), list(linear.parameters())) for y in (model(x), apart)]
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_allclose(ours.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_sequential_calls_what_a_user_has_changed():
    class Mine(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    class Half(nn.ReLU):
        def forward(self, x):
            return super().forward(x) / 2

    x = sg.randn(5, 3)
    for model in (nn.Sequential(Mine(3, 4), nn.ReLU()), nn.Sequential(nn.Linear(3, 4), Half())):
        expected = model[1](model[0](x)).detach().numpy()
        np.testing.assert_array_equal(model(x).detach().numpy(), expected)
    model, seen = nn.Sequential(nn.Linear(3, 4), nn.ReLU()), []
    for layer in model:
        handle = layer.register_forward_hook(lambda m, args, out: seen.append((m, out)))
    model(x)
    assert [m for m, _ in seen] == list(model)
    assert (seen[0][1] < 0).any() and not (seen[1][1] < 0).any()
    handle.remove()
    model[1].forward = lambda x: x  # a method of this object alone
    assert (model(x) < 0).any()


def test_a_row_sparse_gradient_passes_an_activation_joined_with_its_bias():
    w, b = sg.randn(4, 3, requires_grad=True), sg.randn(4, requires_grad=True)
    x = sg.randn(6, 3, requires_grad=True)
    index, found = sg.tensor([1, 1, 4]), []
    for y in (sg.linear(x, w, b, "relu"), sg.relu(sg.linear(x, w, b))):
        with sg.densify(budget=0):
            found.append(sg.grad((y.take(index) ** 2).sum(), [x, w, b]))
    for ours, expected in zip(*found, strict=True):
        assert type(ours) is type(expected)
        np.testing.assert_allclose(densed(ours), densed(expected), rtol=1e-5, atol=1e-6)


def densed(g):
    return (g.to_dense() if isinstance(g, sg.SparseTensor) else g).numpy()


def test_children_by_name_come_once():
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    model.again = model[0]
    assert [name for name, _ in model.named_children()] == ["0", "1"]
    assert list(model.children()) == [model[0], model[1]]
