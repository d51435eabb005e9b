# frozen_string_literal: true

module Candle
  class Server
    # An image that came with a request. It reads like a file, any number of times, so that its bytes are never taken
    # for the path of one; and nothing is fetched for it.
    #
    # @api private
    class Picture
      # What stands before the data of a data URL.
      HEAD = %r{\Adata:(?:image/[\w.+-]+)?(?:;[\w.+-]+=[^;,]*)*;base64,}i
      # Texts that are pictures where both may come.
      URL = %r{\Adata:image/}i
      private_constant :HEAD, :URL

      class << self
        # @param value [Object]
        # @return [Boolean] whether a text is a data URL of an image
        def url?(value)
          value.is_a?(String) && value.match?(URL)
        end

        # @param value [Object] a data URL
        # @param name [String] what to call it in an error
        # @param bare [Boolean] whether base64 alone will do
        # @return [Picture]
        # @raise [Problem] 400
        def read(value, name, bare: false)
          head = value[HEAD] if value.is_a?(String)
          unless head || (bare && value.is_a?(String) && !value.include?(":"))
            raise problem("#{name} must be a data URL, as in data:image/png;base64,...: this server fetches nothing")
          end

          new(value.delete_prefix(head.to_s).delete("\r\n").unpack1("m0"))
        rescue ArgumentError
          raise problem("#{name} is not valid base64")
        end

        private

        def problem(message)
          Problem.new(400, "invalid_request", message)
        end
      end

      # @param bytes [String] of an encoded image
      def initialize(bytes)
        @bytes = bytes.b.freeze
      end

      # @param most [Integer] how many bytes
      # @return [String]
      def read(most = @bytes.bytesize)
        @bytes.byteslice(0, most)
      end

      # @return [String] one line
      def inspect
        "#<#{self.class} #{@bytes.bytesize} bytes>"
      end
    end
  end
end
