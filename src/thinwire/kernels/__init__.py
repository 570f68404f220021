"""Floor 2: tensor operations, a folder each {api, reference, cpu_impl, cases}; the reference is product code."""
