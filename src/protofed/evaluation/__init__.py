"""How good models are: accuracies, few-shot episodes, and a snapshot for the report."""
