# frozen_string_literal: true

Candle::Native.complete(:Weights)
# Its native half makes them.
require "candle/tensor"

module Candle
  # The tensors of a weight file or of a model's directory, by name: safetensors (one file or
  # shards), GGUF, and PyTorch's `pytorch_model.bin`. Files are memory-mapped: opening reads the
  # descriptions only, and a tensor is read when it is asked for. Code inside a `pytorch_model.bin`
  # is never run.
  #
  # @example
  #   weights = Candle::Weights.open("spec/fixtures/weights/dense.safetensors")
  #   weights.info("kind.f32")[:dtype] # => :f32
  #   weights.tensor("kind.f32").shape # => [2, 3]
  class Weights
    include Enumerable
    include Uncopyable

    # @param path [String, Pathname] a weight file, a shard index, or a directory that holds a model
    # @return [Weights]
    # @raise [ModelNotFoundError] when there is no such file, or no weights in the directory
    # @raise [CorruptModelError] when a file is damaged, with its name and the reason
    # @raise [UnsupportedModelError] when a file is of a kind that is not read
    def self.open(path)
      _open(TextInput.path(path, "path"))
    end

    # @param path [String, Pathname]
    # @return [Weights] the same as {.open}
    def self.new(path)
      self.open(path)
    end

    # @return [Array<String>] the names of all tensors, sorted
    def names
      _names
    end

    # @return [Array<String>] the files that the tensors are in
    def files
      _files
    end

    # @param name [String, Symbol]
    # @return [Boolean] whether there is a tensor of that name
    def key?(name)
      _has(named(name))
    end

    alias include? key?

    # @param name [String, Symbol]
    # @param device [Device, String, Symbol, nil] where to put it; nil is the best device
    # @param dtype [DType, Symbol, String, nil] nil keeps the file's type (quantized blocks become `:f32`)
    # @return [Tensor]
    # @raise [CorruptModelError] when there is no such tensor, with the nearest names
    def tensor(name, device: nil, dtype: nil)
      _tensor(named(name), device && Device.parse(device), dtype && DType.parse(dtype))
    end

    # @param name [String, Symbol]
    # @param type [String, Symbol] `f32`, `f16`, `bf16`, or a block type such as `q4_k`
    # @param heads [Integer, nil] sorts the rows of so many heads so that those rotated together are neighbours, as
    #   GGUF files have them
    # @param rows [Array, nil] how GGUF files arrange the rows otherwise: `[:neighbours, heads]` is what `heads` does;
    #   `[:apart, groups, queries]` separates queries, keys and values of groups of heads; `[:columns]` transposes
    #   matrices; `[:alternate, first]` takes every second column, transposed; `[:after, count]` leaves the first rows
    #   out
    # @param importance [Array<Float>, nil] how much each column matters to a block type, from 0 on
    # @return [String] the tensor's bytes in that type, little-endian
    # @raise [InvalidInputError] when its rows are not whole blocks of the type, or `importance` is not that of a row
    def encoded(name, type, heads: nil, rows: nil, importance: nil)
      rows ||= heads && [:neighbours, heads]
      unless NilClass === rows || Array === rows
        raise ArgumentError, "rows must be an Array such as [:neighbours, 4], not #{Arguments.shown(rows)}"
      end

      arrangement = rows && [Arguments.label(rows.first, "rows"), rows.drop(1)]
      _encoded(named(name), Arguments.label(type, "type"), arrangement, importance)
    end

    # @param name [String, Symbol]
    # @return [Hash, nil] `shape:`, `dtype:` (a Symbol, also for quantized types such as `:q4_k`), `bytes:`
    #   and `file:`; nil when there is no such tensor
    def info(name)
      shape, dtype, bytes, file = _info(named(name))
      shape && { shape: shape, dtype: dtype, bytes: bytes, file: file }
    end

    # Calls the block with each name and its {#info}.
    # @yieldparam name [String]
    # @yieldparam info [Hash]
    # @return [self, Enumerator] an Enumerator without a block
    def each
      return enum_for(:each) { size } unless block_given?

      names.each { |name| yield name, info(name) }
      self
    end

    # @return [Integer] how many tensors there are
    def size
      names.size
    end

    # @return [Hash{String => Object}] what the file says besides tensors: the keys of a GGUF file, or the
    #   `__metadata__` of a safetensors file
    def metadata
      _metadata
    end

    # @return [String]
    def inspect
      "#<Candle::Weights #{size} tensors in #{files.map { |file| File.basename(file) }.join(", ")}>"
    end

    private

    def named(name)
      TextInput.utf8(Symbol === name ? name.to_s : name, "name")
    end
  end
end
