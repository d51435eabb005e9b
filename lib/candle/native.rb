# frozen_string_literal: true

# A precompiled gem carries one extension per Ruby version, a compiled one just its own.
begin
  require "candle/#{RUBY_VERSION[/\A\d+\.\d+/]}/candle"
rescue LoadError
  require "candle/candle"
end
