# frozen_string_literal: true

module Candle
  class CLI
    # `red-candle quantize`, `red-candle imatrix` and `red-candle convert`.
    #
    # @api private
    class Quantize < Verb
      UNITS = { "" => 1, "K" => 1_000, "M" => 1_000_000, "G" => 1_000_000_000 }.freeze
      private_constant :UNITS

      # @param source [String]
      # @return [void]
      def call(source)
        path = Quantizer.quantize(source, to: options[:output], type: options[:type], shard_size: shard_size,
                                          imatrix: options[:imatrix], calibration: options[:calibration],
                                          progress: $stderr.tty?)
        written(path, files(path))
      end

      # @param source [String]
      # @param file [String] with a text
      # @return [void]
      def imatrix(source, file)
        path = Quantizer.imatrix(source, text: file, to: options[:output], context: options[:context],
                                         device: options[:device], progress: $stderr.tty?)
        written(path, [path])
      end

      # @param source [String]
      # @return [void]
      def convert(source)
        path = Quantizer.convert(source, to: options[:output], dtype: options[:dtype], progress: $stderr.tty?)
        written(path, Dir.children(path).sort.map { |name| File.join(path, name) })
      end

      private

      def written(path, files)
        bytes = files.sum { |file| File.size(file) }
        show({ path: path, files: files, bytes: bytes }) { puts "#{path}: #{Terminal.size(bytes)}" }
      end

      def files(path)
        start = path[/\A.*(?=-00001-of-\d{5}\.gguf\z)/]
        start ? Dir.glob("#{start}-*-of-*.gguf").sort : [path]
      end

      def shard_size
        given = options[:shard_size] or return
        number, unit = given.match(/\A(\d+(?:\.\d+)?)([KMG]?)B?\z/i)&.captures
        raise ArgumentError, "--shard-size must be a size such as 2G or 500M, not #{given}" unless number

        (Float(number) * UNITS.fetch(unit.upcase)).to_i
      end
    end
  end
end
