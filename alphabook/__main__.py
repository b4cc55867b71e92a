"""`python -m alphabook`"""
import sys

from alphabook.cli import main

sys.exit(main())
