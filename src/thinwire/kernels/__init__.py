"""Floor 2: tensor operations. Each operation is a folder {api, reference, cpu_impl, cases}; the reference is product code."""
