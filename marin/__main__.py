"""`python -m marin`, for where the script is not on the path."""

from marin.cli.app import main

main()
