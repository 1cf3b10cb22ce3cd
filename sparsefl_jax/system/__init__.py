"""The machine that a run uses: devices, processes, signals, files."""
