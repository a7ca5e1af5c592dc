"""What several measures are made of; none of these files is a measure."""
