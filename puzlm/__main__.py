"""`python -m puzlm`: the command, where it is not on the path."""

from puzlm.cli import main

main()
