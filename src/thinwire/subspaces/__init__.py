"""Floor 3: paper 2, context-parallel Llama pretraining with compressed K and V. Never sees ``soma``."""
