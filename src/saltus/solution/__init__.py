"""What a solve returns: values, events, why it stopped, pictures and files."""
