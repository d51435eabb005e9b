# frozen_string_literal: true

module Candle
  # How much the inputs of a weight's columns matter: the means of their squares while a model reads a text. {Quantizer}
  # gives columns with large inputs smaller errors. Files are as llama.cpp's `llama-imatrix` writes them: GGUF, or the
  # older `.dat` format.
  #
  # @api private
  class ImportanceMatrix
    # Longer names or counts mean that a file is of another kind.
    MOST_NAME = 1024
    MOST_ENTRIES = 1 << 20
    SUMS = ".in_sum2"
    COUNTS = ".counts"
    private_constant :MOST_NAME, :MOST_ENTRIES, :SUMS, :COUNTS

    class << self
      # @param path [String, Pathname]
      # @return [ImportanceMatrix]
      # @raise [ModelNotFoundError] when there is no such file
      # @raise [CorruptModelError] when it is of another kind or damaged
      def open(path)
        path = TextInput.path(path, "imatrix")
        raise ModelNotFoundError, "#{path}: no such file" unless File.file?(path)

        columns = File.binread(path, 4) == "GGUF" ? gguf(path) : dat(path)
        raise CorruptModelError, "#{path} has no importance of any weight" if columns.empty?

        new(path, columns)
      end

      # @param layout [GgufLayout] which weights there are
      # @param inputs [ModuleInputs] what their modules read
      # @return [ImportanceMatrix]
      def measured(layout, inputs)
        columns = weights_of(layout, inputs).transform_values do |modules|
          modules.flat_map { |sums, rows| sums.map { |sum| mean(sum, rows) } }
        end
        new("the importance matrix", columns)
      end

      # Writes a file that {.open} and llama.cpp read.
      #
      # @param path [String]
      # @return [String] the path
      def write(path, layout, inputs)
        tensors = weights_of(layout, inputs).flat_map { |name, modules| entries(name, modules) }
        metadata = { "general.type" => "imatrix", "imatrix.datasets" => GgufWriter::Strings.new([inputs.text_name]),
                     "imatrix.chunk_count" => GgufWriter.u32(inputs.chunks),
                     "imatrix.chunk_size" => GgufWriter.u32(inputs.context) }
        GgufWriter.new(path, metadata, tensors, nil).write { |tensor, _| [tensor[:data]] }
      end

      private

      # By the name of a weight, the sums and counts of its matrices.
      def weights_of(layout, inputs)
        found = layout.tensors.filter_map do |tensor|
          modules = Array(tensor[:from]).map { |name| inputs.of(name) }
          [tensor[:name], stacked(tensor, modules)] if modules.any? && modules.all? && columns?(tensor, modules)
        end
        found.to_h
      end

      # Matrices that checkpoints store in one tensor have its inputs in common.
      def stacked(tensor, modules)
        stack = tensor[:shape].size > 2 && modules.one? ? tensor[:shape].first : 1
        modules * stack
      end

      # Whether the columns are those of the checkpoint: not where a matrix is turned.
      def columns?(tensor, modules)
        modules.all? { |sums, _| sums.size == tensor[:shape].last }
      end

      def entries(name, modules)
        sums = modules.map(&:first)
        [{ name: name + SUMS, shape: [sums.size, sums.first.size], type: "f32", data: sums.flatten.pack("e*") },
         { name: name + COUNTS, shape: [sums.size, 1], type: "f32", data: modules.map(&:last).pack("e*") }]
      end

      def gguf(path)
        weights = Weights.open(path)
        sums = weights.names.select { |name| name.end_with?(SUMS) }
        sums.to_h do |name|
          weight = name.delete_suffix(SUMS)
          counts = values(weights, weight + COUNTS)
          found = values(weights, name)
          each = found.size / [counts.size, 1].max
          [weight, found.each_with_index.map { |sum, at| mean(sum, counts[at / [each, 1].max]) }]
        end
      end

      def values(weights, name)
        weights.tensor(name, device: "cpu", dtype: :f32).to_a.flatten
      end

      # An expert that no token reached says nothing of its inputs.
      def mean(sum, count)
        count.to_f.positive? ? sum / count : 1.0
      end

      def dat(path)
        File.open(path, "rb") do |file|
          count = integer(file, path, MOST_ENTRIES)
          Array.new(count) { entry(file, path) }.to_h
        end
      end

      def entry(file, path)
        name = bytes(file, path, integer(file, path, MOST_NAME)).force_encoding("UTF-8")
        calls = integer(file, path)
        numbers = bytes(file, path, 4 * integer(file, path, File.size(path) / 4)).unpack("e*")
        [name, numbers.map { |number| calls.positive? ? number / calls : number }]
      end

      def integer(file, path, most = (1 << 31) - 1)
        value = bytes(file, path, 4).unpack1("l<")
        value.between?(0, most) ? value : raise(CorruptModelError, "#{path} is not an importance matrix")
      end

      def bytes(file, path, count)
        found = count.zero? ? "" : file.read(count)
        raise CorruptModelError, "#{path} is cut off" unless found&.bytesize == count

        found
      end
    end

    # @api private
    def initialize(path, columns)
      @path = path
      @columns = columns
    end

    # @param name [String] a weight of a GGUF file
    # @param count [Integer] how many matrices it has
    # @param row [Integer] how many columns each of them has
    # @return [Array<Array<Float>, nil>] the importance of each matrix's columns; nil where nothing is known of it
    # @raise [CorruptModelError] when the matrix is of another model
    def of(name, count, row)
      found = @columns[name] or return Array.new(count)
      return found.each_slice(row).to_a if found.size == count * row

      raise CorruptModelError,
            "#{@path}: #{name} has #{found.size} columns, not #{count * row}. Use the matrix of this model"
    end
  end
end
