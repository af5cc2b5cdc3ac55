"""Program of ``fl-app-superexec``, for the command that starts it by module."""

from fl_app.enforcement.commands import superexec

if __name__ == "__main__":
    superexec()
