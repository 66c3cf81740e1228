"""Problem, Plan, Run: what each needs is in its arguments and their types, and nothing else is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import natural_langevin
import small_run
from source_trees import parsed

ROOT = Path(natural_langevin.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
#: Objects of ours, whatever they are called with and wherever they are kept.
OURS = {
    "sampler", "problem", "motion", "plan", "posterior", "state", "engine", "dynamics", "stream",
    "collector", "gradients", "network", "phase", "options", "given", "asked", "limit", "mesh",
    "choice", "trial", "moves", "units", "signature", "likelihood", "prior", "preconditioner",
    "integrator", "metric", "rates", "learned", "outcome", "view", "member", "scores", "fisher",
    "statistics", "features", "executor",
}  # fmt: skip
#: Where what a user has given is looked at for the first time; and torch's own sampler of rows, its
#: classes' internals, and a state that has shapes alone.
UNCHECKED = {
    "run/problem/validation.py", "optim/groups.py", "_internal/given_weights.py",
    "priors/gaussian.py", "data/loaders.py", "run/problem/work.py", "_internal/gpu_build.py",
}  # fmt: skip
#: What named tuples have, and what torch keeps of a module or tensor under no other name.
KNOWN = {
    "_replace", "_asdict", "_fields", "_modules", "_parameters", "_buffers", "_version", "_is_view",
    "_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs", "_backward_hooks",
    "_backward_pre_hooks",
}  # fmt: skip
#: Those that replace a part of torch's own, by whose names they go.
INSIDE_TORCH = {
    "execution/traced.py", "statistics/rules/rewritten.py", "statistics/rules/convolution.py",
}  # fmt: skip


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def annotated(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Names that an argument list or an assignment gives types to."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for one in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            yield one.arg, one.annotation
    elif isinstance(node, ast.AnnAssign):
        yield ast.unparse(node.target).rpartition(".")[2], node.annotation


def untyped(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        for name, annotation in annotated(node):
            words = "" if annotation is None else ast.unparse(annotation)
            if name.strip("_") in OURS and "Any" in words.split():
                yield f"{node.lineno}: {name}: {words}"  # type: ignore[attr-defined]


def test_no_object_of_ours_is_any() -> None:
    """What a user gives is checked where it enters, and has no type before."""
    found = {named(p): [*untyped(parsed(p))] for p in FILES if named(p) not in UNCHECKED}
    assert not {name: places for name, places in found.items() if places}
    for seen in ("def f(state: Any): ...", "class A:\n    def g(self): self._plan: Any = 1"):
        assert [*untyped(ast.parse(seen))]  # the check sees one


def private(tree: ast.Module) -> Iterator[str]:
    """Underscore names of others' objects: those that this file gives to none of its own."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            own |= {node.attr} if node.value.id in ("self", "cls") else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            dunder, torchs = (
                node.attr.startswith("__"),
                ast.unparse(node.value).startswith(("torch", "dist.", "nn.modules.")),
            )
            if not (dunder or torchs or node.attr in own | KNOWN):
                yield ast.unparse(node)


def test_nobody_reads_anothers_private_names() -> None:
    found = {named(p): [*private(parsed(p))] for p in FILES if named(p) not in INSIDE_TORCH}
    assert not {name: places for name, places in found.items() if places}
    assert [*private(ast.parse("def f(x): return x._hidden"))]  # the check sees one


def hidden(tree: ast.Module) -> set[str]:
    """Packages that are imported behind TYPE_CHECKING."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for one in ast.walk(node):
                names = [a.name for a in one.names] if isinstance(one, ast.Import) else []
                names += [one.module or "."] if isinstance(one, ast.ImportFrom) else []
                found |= {name.split(".")[0] for name in names}
    return found


def test_no_circle_hides_behind_an_import_that_never_runs() -> None:
    """Nothing of ours is imported for its types alone: only what is slow to load, or optional."""
    files = [p for p in ROOT.rglob("*.py") if "TYPE_CHECKING" in p.read_text()]
    found = {named(p): hidden(parsed(p)) for p in files}
    assert set().union(*found.values()) == {"pandas", "jinja2", "wandb"}
    assert hidden(ast.parse("if TYPE_CHECKING:\n    from natural_langevin import x")) == {
        "natural_langevin"
    }


def test_no_setting_hides_in_a_variable_of_the_thread() -> None:
    assert not [named(path) for path in ROOT.rglob("*.py") if "ContextVar" in path.read_text()]


def test_a_sampler_keeps_nothing_of_a_run() -> None:
    sampler = small_run.sampler()
    before = dict(vars(sampler))
    first = sampler.sample(small_run.data(), 12, batch_size=20, progress=False)
    after = vars(sampler)
    assert before.keys() == after.keys()
    assert all(after[name] is value for name, value in before.items())
    again = sampler.sample(small_run.data(), 12, batch_size=20, progress=False)
    small_run.assert_same(first, again)


def test_a_checkout_may_lie_in_a_folder_of_any_name(request: pytest.FixtureRequest) -> None:
    """One in a folder called ``law`` has the self-checks of its runs."""
    here = str(Path(__file__).with_name("conftest.py"))
    plugins = request.config.pluginmanager.get_plugins()
    (conftest,) = [p for p in plugins if getattr(p, "__file__", None) == here]
    tests = Path("/law/tests")
    assert conftest.below(tests / "optim" / "test_loop.py", tests) == ("optim", "test_loop.py")
    assert conftest.below(Path("/law/src/natural_langevin/langevin.py"), tests) == ()
