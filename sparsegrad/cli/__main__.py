"""`python -m sparsegrad.cli`."""

from sparsegrad.cli import app

if __name__ == "__main__":
    app()
