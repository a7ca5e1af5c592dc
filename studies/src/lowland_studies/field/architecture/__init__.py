"""What parts of an architecture and ways to regularise do to the two determinants of the gap."""
