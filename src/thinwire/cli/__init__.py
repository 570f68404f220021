"""Floor 7: the command line. Each verb parses, calls one function and prints where the result lies."""
