"""Finds the configurations and studies that come with the package.

They lie at the top of the repository; the wheel holds them as `sparsefl_jax/shipped`.
"""

from pathlib import Path

from sparsefl_jax.core.check import UserError


def folder(kind: str) -> Path:
    """Returns the folder of 'configs' or 'studies': the installed one, or the clone's.

    Example:
      >>> (folder("configs") / "flash_mnist.py").is_file()
      True
    """
    package = Path(__file__).parents[1]
    installed = package / "shipped" / kind
    return installed if installed.is_dir() else package.parent / kind


def names(kind: str) -> list[str]:
    """Returns the files of a folder by name."""
    return sorted(path.name for path in folder(kind).glob("[!_]*.py"))


def find(flag: str, kind: str, given: str) -> str:
    """Returns the path of a file that a flag names.

    Args:
      flag: the name of the flag, for messages.
      kind: 'configs' or 'studies'.
      given: FILE or FILE:ARGUMENT. FILE is a path, or the name of a file that comes
        with the package, with or without the folder and `.py`.

    Returns:
      The path, followed by the argument as given.

    Raises:
      ValueError: there is no such file.

    Example:
      >>> find("config", "configs", "flash_mnist:mini") == (
      ...     f"{folder('configs')}/flash_mnist.py:mini"
      ... )
      True
    """
    file, colon, argument = given.partition(":")
    path = Path(file)
    if path.is_file():
        return given
    name = f"{path.name.removesuffix('.py')}.py"
    if path.parent in (Path(), Path(kind)) and name in names(kind):
        return f"{folder(kind) / name}{colon}{argument}"
    raise UserError(f"--{flag}={file}: there is no such file; --list names all")
