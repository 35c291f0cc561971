"""What every other package uses: leaves and names of pytrees, results, text, tracing, kernels."""
