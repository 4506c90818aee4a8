"""`python -m gatelm`."""

from gatelm.cli.main import main

main()
