# frozen_string_literal: true

module Candle
  # Says once in the life of a process that a name has a better one.
  #
  # @api private
  module Deprecation
    @said = {}
    @lock = Mutex.new

    class << self
      # @param name [String] what is called
      # @param better [String] what to call instead
      # @return [void]
      def warn(name, better)
        first = @lock.synchronize { @said[name].nil? && (@said[name] = true) }
        Candle.logger.warn("#{name} is deprecated: use #{better} instead (docs/guides/migrating.md)") if first
      end
    end
  end
end
