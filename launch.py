"""Runs a configuration: `python launch.py --config=configs/flash_cifar10.py:mini`."""

from sparsefl_jax.launch import main

if __name__ == "__main__":
    main()
