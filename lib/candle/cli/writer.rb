# frozen_string_literal: true

require "json"

module Candle
  class CLI
    # Results in a file or on standard output, one per text. A file that a run left unfinished is continued: what is
    # whole in it stays, half a record at its end goes.
    #
    # @api private
    class Writer
      # @return [Integer] how many results the file holds
      attr_reader :done

      # @param path [String, nil] nil is standard output
      # @param format [String] `jsonl`, `csv` or `packed`
      # @param record_bytes [Integer, nil] of a packed result
      def initialize(path, format:, record_bytes: nil)
        @format = format
        @record_bytes = record_bytes
        @done = 0
        @output = path ? resume(path) : $stdout
        @output.binmode if format == "packed"
      end

      # @param given [String, Pathname] a text, or the path of an image
      # @param result [Object] what the model made of it
      # @return [void]
      def write(given, result)
        @output.write(record(given, result))
        @done += 1
      end

      # @return [void]
      def close
        @output.flush
        @output.close unless @output.equal?($stdout)
      end

      private

      def resume(path)
        file = File.open(path, File::RDWR | File::CREAT | File::BINARY)
        keep = whole_bytes(file)
        file.truncate(keep)
        file.seek(keep)
        file
      end

      def whole_bytes(file)
        if @format == "packed"
          @done = file.size / @record_bytes
          return @done * @record_bytes
        end
        keep = 0
        file.each_line do |line|
          break unless line.end_with?("\n")

          keep += line.bytesize
          @done += 1
        end
        keep
      end

      def record(given, result)
        case @format
        when "packed" then result
        when "csv" then row(given.to_s, result)
        else "#{JSON.generate({ given.is_a?(Pathname) ? :image : :text => given.to_s }.merge(result))}\n"
        end
      end

      def row(text, result)
        cells = result.values.flatten(1).flat_map { |cell| cell.is_a?(Hash) ? cell.values : [cell] }
        "#{[text, *cells].map { |cell| quoted(cell.to_s) }.join(",")}\n"
      end

      # One line per record, so that a file can be continued.
      def quoted(cell)
        cell.match?(/[",\r\n]/) ? "\"#{cell.gsub(/\R/, " ").gsub('"', '""')}\"" : cell
      end
    end
  end
end
