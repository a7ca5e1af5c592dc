"""The probe in training frameworks; each is a file that imports its framework."""
