"""``python -m fl_app`` is ``fl-app``."""

from fl_app.cli import main

if __name__ == "__main__":
    main()
