"""`python -m puzlm`: the command, where it is not on the path."""

from puzlm.cli.main import main

main()
