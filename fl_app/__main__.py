"""``python -m fl_app`` is ``fl-app``."""

from fl_app.cli.commands import main

if __name__ == "__main__":
    main()
