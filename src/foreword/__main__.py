"""`python -m foreword`."""

from foreword.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
