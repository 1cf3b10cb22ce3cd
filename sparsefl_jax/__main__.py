"""Makes `python -m sparsefl_jax` the same as the command `sparsefl`."""

from sparsefl_jax.launch import main

if __name__ == "__main__":
    main()
