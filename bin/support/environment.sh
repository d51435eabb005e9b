# Sourced by the commands in bin/: finds tools that a package manager or rustup
# installed but that this shell does not have on its PATH yet.

if ! command -v cargo >/dev/null 2>&1 && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
  export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
fi

# macOS ships a Ruby that is too old; Homebrew does not link its own over it.
if [ "$(uname -s)" = Darwin ] && [ "$(command -v ruby)" = /usr/bin/ruby ] && command -v brew >/dev/null 2>&1; then
  homebrew_ruby="$(brew --prefix ruby 2>/dev/null || true)/bin"
  [ -x "$homebrew_ruby/ruby" ] && export PATH="$homebrew_ruby:$PATH"
fi
true
