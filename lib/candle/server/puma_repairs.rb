# frozen_string_literal: true

module Candle
  class Server
    # What Puma does otherwise than a server of long answers needs it. {Launcher} applies it to its own process.
    #
    # @api private
    module PumaRepairs
      # Puma drops a request whose client has ended its side of the connection, though it may still read. Whether it
      # does {Connection} finds out.
      module Clients
        private

        def closed_socket?(_socket)
          false
        end
      end

      # A chunk without a size is the client's mistake, which Puma 5 and 6 answer by 500.
      module Chunks
        private

        def decode_chunk(chunk)
          super
        rescue ArgumentError, NoMethodError, RangeError
          raise ::Puma::HttpParserError, "invalid chunk"
        end
      end

      # @return [void]
      def self.apply
        ::Puma::Server.prepend(Clients) if there?(::Puma::Server, :closed_socket?)
        ::Puma::Client.prepend(Chunks) if there?(::Puma::Client, :decode_chunk)
      end

      def self.there?(owner, method)
        owner.method_defined?(method) || owner.private_method_defined?(method)
      end
      private_class_method :there?
    end
  end
end
