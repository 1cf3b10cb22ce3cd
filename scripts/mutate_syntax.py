"""Lists the mutants of a Python source: one change of its syntax tree each."""

import ast
from collections.abc import Iterator

SWAPPED = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr},
}
RENAMED = {
    **{"minimum": "maximum", "min": "max", "any": "all", "floor": "ceil", "exp": "log"},
    **{"zeros": "ones", "zeros_like": "ones_like", "sum": "mean", "sqrt": "square"},
    **{"logical_and": "logical_or", "argmin": "argmax"},
}
RENAMED |= {new: old for old, new in RENAMED.items()}
DROPPED = ("where", "axis", "keepdims")  # keyword arguments that a mutant leaves out
SKIPPED = ("annotation", "returns", "decorator_list", "type_params")


def other_number(value: bool | int | float) -> bool | int | float:
    """Returns a value of the same type that is not `value`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return 0 if value == 1 else value + 1
    return value * 2 if value else 1.0


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yields what a mutant may put in the place of one node of a syntax tree."""

    def with_fields(**fields) -> ast.AST:
        return type(node)(**dict(ast.iter_fields(node)) | fields)

    match node:
        case ast.Constant(value=bool() | int() | float()):
            yield ast.Constant(other_number(node.value))
        case ast.Compare(ops=[op, *rest]):
            yield with_fields(ops=[SWAPPED[type(op)](), *rest])
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp():
            if type(node.op) in SWAPPED:
                yield with_fields(op=SWAPPED[type(node.op)]())
        case ast.UnaryOp():
            yield node.operand
        case ast.IfExp():
            yield with_fields(body=node.orelse, orelse=node.body)
        case ast.If():
            yield with_fields(test=ast.UnaryOp(ast.Not(), node.test))
        case ast.Attribute() | ast.Name():
            name = "attr" if isinstance(node, ast.Attribute) else "id"
            if getattr(node, name) in RENAMED:
                yield with_fields(**{name: RENAMED[getattr(node, name)]})
        case ast.Call(func=ast.Attribute(attr="where"), args=[condition, yes, no]):
            yield with_fields(args=[condition, no, yes])
        case ast.Call():
            for k in node.keywords:
                if k.arg in DROPPED:
                    yield with_fields(keywords=[o for o in node.keywords if o != k])
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Name(id=name)]):
            # A second value of a name; without the first, Python would not even start.
            names = (n.id for n in ast.walk(node.value) if isinstance(n, ast.Name))
            if name in names:
                yield ast.Pass()


def sites(node: ast.AST) -> Iterator[tuple[list | ast.AST, int | str, ast.AST]]:
    """Yields (container, place in it, new node) of each mutant of a syntax tree.

    Docstrings, error messages, annotations and decorators are left alone.
    """
    for field, value in ast.iter_fields(node):
        if field in SKIPPED or isinstance(node, ast.Raise):
            continue
        places = enumerate(value) if isinstance(value, list) else [(field, value)]
        for place, child in places:
            if isinstance(child, ast.AST):
                container = value if isinstance(value, list) else node
                yield from ((container, place, new) for new in changes(child))
                yield from sites(child)


def mutate(source: str, number: int) -> tuple[str, str]:
    """Returns the source of one mutant of a source, and what it changes and where."""
    tree = ast.parse(source)
    container, place, new = list(sites(tree))[number]
    old = container[place] if isinstance(place, int) else getattr(container, place)
    said = f"{old.lineno}:{old.col_offset}: {ast.unparse(old)} -> {ast.unparse(new)}"
    if isinstance(place, int):
        container[place] = new
    else:
        setattr(container, place, new)
    return ast.unparse(ast.fix_missing_locations(tree)), said


def count_mutants(source: str) -> int:
    """Returns how many mutants a source has."""
    return sum(1 for _ in sites(ast.parse(source)))
