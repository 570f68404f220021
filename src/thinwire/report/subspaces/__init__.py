"""What the report says about context-parallel runs."""
