"""`python -m radixlm`: the command `radixlm`."""

from __future__ import annotations

from radixlm.cli_start import main

if __name__ == "__main__":
    main()
