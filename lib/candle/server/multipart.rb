# frozen_string_literal: true

require "stringio"
require "tempfile"

module Candle
  class Server
    # A body of the type `multipart/form-data`, read piece by piece: fields stay in memory, files go to temporary ones.
    #
    # @api private
    class Multipart
      # A file of a form.
      Upload = Struct.new(:name, :type, :file, keyword_init: true) do
        # @return [Integer] bytes
        def size = file.size

        # @return [String] all of it
        def bytes = file.tap(&:rewind).read

        # Removes the temporary file.
        #
        # @return [void]
        def close = file.close!
      end

      CHUNK = 64 * 1024
      # What a form of a client has at most; strangers send more.
      PARTS = 64
      HEAD_BYTES = 8 * 1024
      FIELD_BYTES = 256 * 1024
      BOUNDARY = %r{\Amultipart/form-data\s*;.*?\bboundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))}i
      private_constant :CHUNK, :PARTS, :HEAD_BYTES, :FIELD_BYTES, :BOUNDARY

      # Reads the form of a request, and removes its temporary files after the block.
      #
      # @param env [Hash] of Rack
      # @param limit [Integer] bytes of the whole body
      # @yieldparam form [Hash{String => String, Upload}] what it has, by name
      # @return [Object] what the block returns
      # @raise [Problem] 400 for a malformed form, 413 for one that is too large
      def self.read(env, limit:)
        reader = new(env, limit)
        yield reader.form
      ensure
        reader&.close
      end

      def initialize(env, limit)
        found = BOUNDARY.match(env["CONTENT_TYPE"].to_s.scrub)
        raise malformed("the body must be multipart/form-data") unless found

        @limit = limit
        raise too_large if env["CONTENT_LENGTH"].to_i > limit

        @mark = "\r\n--#{found[1] || found[2]}".b
        @input = env["rack.input"]
        # The first boundary may come without a line before it.
        @buffer = "\r\n".b
        @bytes = 0
        @fields = {}
        @uploads = []
      end

      # @return [Hash{String => String, Upload}]
      def form
        skip_to_mark
        part until ended?
        @fields
      end

      # Removes what was written.
      #
      # @return [void]
      def close
        @uploads.each(&:close)
      end

      private

      def part
        raise malformed("the form has more than #{PARTS} parts") if @fields.size >= PARTS

        name, filename, type = head
        filename ? upload(name, filename, type) : field(name)
      end

      def upload(name, filename, type)
        file = Tempfile.new("candle-upload", binmode: true)
        @uploads << Upload.new(name: filename, type: type, file: file)
        skip_to_mark { |bytes| file.write(bytes) }
        file.flush
        @fields[name] = @uploads.last
      end

      def field(name)
        text = +"".b
        skip_to_mark do |bytes|
          text << bytes
          raise malformed("the field #{name[0, 40]} is too long") if text.bytesize > FIELD_BYTES
        end
        text.force_encoding(Encoding::UTF_8)
        raise malformed("the field #{name[0, 40]} is not valid UTF-8") unless text.valid_encoding?

        @fields[name] = listed(name, text)
      end

      # A name with brackets has all of its values, with commas between them.
      def listed(name, text)
        before = @fields[name]
        return text unless name.end_with?("[]") && String === before
        raise malformed("the field #{name[0, 40]} is too long") if before.bytesize + text.bytesize > FIELD_BYTES

        "#{before},#{text}"
      end

      # Whether the boundary just read is the last one.
      def ended?
        fill(2)
        mark = @buffer.slice!(0, 2)
        return true if mark == "--"
        return false if mark == "\r\n"

        raise malformed("a boundary of the form is malformed")
      end

      def head
        until (stop = @buffer.index("\r\n\r\n"))
          raise malformed("the head of a part is too long") if @buffer.bytesize > HEAD_BYTES

          more or raise malformed("the form is cut off")
        end
        lines = @buffer.slice!(0, stop + 4).force_encoding(Encoding::UTF_8).scrub.split("\r\n")
        headers = lines.to_h { |line| line.split(":", 2).then { |key, value| [key.to_s.downcase, value.to_s.strip] } }
        disposition = headers["content-disposition"].to_s
        name = parameter(disposition, "name") or raise malformed("a part of the form has no name")
        [name, parameter(disposition, "filename"), headers["content-type"]]
      end

      def parameter(disposition, name)
        found = disposition.match(/[;\s]#{name}=(?:"((?:[^"\\]|\\.)*)"|([^;\s]+))/i)
        found && (found[1]&.gsub(/\\(.)/, '\1') || found[2])
      end

      # Yields what comes before the next boundary, and reads that too.
      def skip_to_mark
        until (stop = @buffer.index(@mark))
          safe = @buffer.bytesize - @mark.bytesize
          yield @buffer.slice!(0, safe) if safe.positive? && block_given?
          more or raise malformed("the form is cut off")
        end
        before = @buffer.slice!(0, stop)
        yield before if block_given?
        @buffer.slice!(0, @mark.bytesize)
      end

      def fill(count)
        (more or raise malformed("the form is cut off")) until @buffer.bytesize >= count
      end

      def more
        bytes = @input&.read(CHUNK)
        return if bytes.nil? || bytes.empty?

        @bytes += bytes.bytesize
        raise too_large if @bytes > @limit

        @buffer << bytes
      end

      def malformed(message)
        Problem.new(400, "invalid_request", message)
      end

      def too_large
        Problem.new(413, "body_too_large", "the body is larger than the #{@limit} bytes that the server takes here")
      end
    end
  end
end
