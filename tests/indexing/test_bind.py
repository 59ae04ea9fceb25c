import pytest

from fa_numba.indexing import bind, block_range

# Stand-ins for functions of the package: a leaf, one that calls it twice, one that calls both.


def leaf(x):
    """Leaf."""
    return x + 1


def branch(x):
    return leaf(leaf(x))


def root(x, y=3):
    return branch(x) * leaf(y)


for stand_in in (leaf, branch, root):
    stand_in.__module__ = "fa_numba.indexing.stand_ins"


def foreign(x):
    return 100 * x


def caller(x):
    return foreign(leaf(x)) + len("four")


def tagged(function):
    """A decorator that counts the calls."""

    def call(*arguments):
        call.calls += 1
        return function(*arguments)

    call.calls = 0
    call.wrapped = function
    return call


def test_callees_are_decorated_too():
    bound = {}
    decorated = bind.bind(root, tagged, bound)
    assert decorated(5) == root(5) == 28
    assert bound.keys() == {root, branch, leaf}
    assert bound[root] is decorated
    assert [bound[f].calls for f in (root, branch, leaf)] == [1, 1, 3]


def test_the_originals_are_left_alone():
    before = leaf, branch, root
    bind.bind(root, tagged)
    assert (leaf, branch, root) == before
    assert root.__globals__["branch"] is branch
    assert root(5) == 28


def test_a_function_with_many_callers_is_decorated_once():
    bound = {}
    first = bind.bind(leaf, tagged, bound)
    assert bind.bind(leaf, tagged, bound) is first
    bind.bind(root, tagged, bound)(5)
    assert first.calls == 3
    # Without a shared dictionary each call starts anew.
    assert bind.bind(leaf, tagged) is not bind.bind(leaf, tagged)


def test_the_copy_keeps_what_a_compiler_looks_at():
    copy = bind.bind(leaf, tagged).wrapped
    assert copy is not leaf
    assert copy.__code__ is leaf.__code__
    assert copy.__name__ == "leaf"
    assert copy.__module__ == "fa_numba.indexing.stand_ins"
    assert copy.__doc__ == "Leaf."
    assert bind.bind(root, tagged).wrapped(5) == 28  # the default of y


def test_a_closure_is_kept():
    offset = 7

    def shifted(x):
        return leaf(x) + offset

    assert bind.bind(shifted, tagged)(1) == 9


def test_functions_of_others_and_builtins_are_not_decorated():
    bound = {}
    assert bind.bind(caller, tagged, bound)(1) == 204
    assert bound.keys() == {caller, leaf}


def test_with_which_callees_of_others_are_decorated():
    bound = {}
    assert bind.bind(caller, tagged, bound, which=lambda function: True)(1) == 204
    assert bound.keys() == {caller, foreign, leaf}


def test_callees_in_a_closure_are_decorated():
    inner = leaf

    def outer(x):
        return inner(x) * 2

    bound = {}
    assert bind.bind(outer, tagged, bound)(1) == 4
    assert bound[leaf].calls == 1
    assert outer(1) == 4
    assert outer.__closure__[0].cell_contents is leaf


def test_callees_in_a_module_are_decorated_and_the_module_left_alone():
    def through_module(x):
        return block_range.num_m_blocks(x, 300, 1)

    before = dict(vars(block_range))
    bound = {}
    assert bind.bind(through_module, tagged, bound)(128) == 3
    assert bound[block_range.num_m_blocks].calls == 1
    assert vars(block_range) == before


def test_callees_of_nested_functions_are_decorated():
    def outer(xs):
        return [leaf(x) for x in xs] + [(lambda y: branch(y))(x) for x in xs]

    bound = {}
    assert bind.bind(outer, tagged, bound)([1, 2]) == [2, 3, 3, 4]
    assert bound.keys() == {outer, leaf, branch}


def test_what_a_function_refers_to():
    inner = 7

    def function(x):
        return leaf(x) + inner + block_range.ceil_div(x, 2) + undefined  # noqa: F821

    found = dict(bind.referenced(function))
    assert found == {"leaf": leaf, "inner": 7, "block_range.ceil_div": block_range.ceil_div}


def ping(x):
    return pong(x - 1) if x else 0


def pong(x):
    return ping(x)


def test_a_circle_of_calls_is_refused():
    with pytest.raises(ValueError, match="ping calls itself"):
        bind.bind(ping, tagged, which=lambda function: True)
