"""SpaFL (Kim et al., NeurIPS 2024) and training its clients alone."""
