"""``python -m lowland`` for where the script is not on the path."""

from lowland.cli import main

main()
