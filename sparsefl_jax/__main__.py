"""`python -m sparsefl_jax` is the command `sparsefl`."""

from sparsefl_jax.launch import main

if __name__ == "__main__":
    main()
