import sys

from tests.soak.watch import main

main(sys.argv[1:])
