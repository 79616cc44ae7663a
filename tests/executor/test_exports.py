"""What the package says that it has."""

from importlib import import_module

from pipesched import executor


def test_no_module_hides_a_function_of_the_same_name():
    for name in ("launcher", "job", "local", "interpreter"):
        import_module(f"pipesched.executor.{name}")
    assert all(callable(getattr(executor, name)) for name in executor.__all__)
