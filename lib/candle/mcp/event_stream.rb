# frozen_string_literal: true

module Candle
  module MCP
    # Reads server-sent events.
    #
    # @api private
    class EventStream
      # @param limit [Integer] bytes of an event
      # @param server [String] what to call the server in an error
      def initialize(limit, server)
        @limit = limit
        @server = server
        @line = String.new(encoding: Encoding::BINARY)
        @data = String.new(encoding: Encoding::BINARY)
      end

      # @param chunk [String] some bytes of the stream
      # @yieldparam data [String] of an event
      # @return [void]
      # @raise [MCPError] for an event beyond the limit
      def feed(chunk)
        chunk.b.each_line do |piece|
          @line << piece
          if @line.bytesize + @data.bytesize > @limit
            raise MCPError, "#{@server} sent a message of more than limit: #{@limit} bytes"
          end
          next unless piece.end_with?("\n")

          line = @line.chomp
          @line = String.new(encoding: Encoding::BINARY)
          data = take(line)
          yield data if data
        end
      end

      private

      # An empty line ends an event. Comments and other fields than data don't matter here.
      def take(line)
        if line.empty?
          data = @data.chomp
          @data = String.new(encoding: Encoding::BINARY)
          return data.empty? ? nil : data
        end

        name, value = line.split(":", 2)
        @data << value.to_s.delete_prefix(" ") << "\n" if name == "data"
        nil
      end
    end
  end
end
