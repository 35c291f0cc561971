"""What users write: systems, events, inputs, modes. No numerics."""
