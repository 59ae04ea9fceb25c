from fa_numba.indexing import bind

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
