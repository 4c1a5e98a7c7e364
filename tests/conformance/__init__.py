"""What the importer covers, case by case, XLA being the oracle."""
