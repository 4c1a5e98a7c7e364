"""Trees of dicts and lists that differ from others in one place, for the tests of several rooms."""

import copy

DELETED = object()


def with_edit(tree, path, value):
    """A copy with another value at a path of keys, or without what is there (`DELETED`)."""
    tree = at = copy.deepcopy(tree)
    *parents, last = path
    for key in parents:
        at = at[key]
    if value is DELETED:
        del at[last]
    else:
        at[last] = value
    return tree
