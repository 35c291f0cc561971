"""What every package stands on: leaves and names of pytrees, results, text, tracing, kernels."""
