# frozen_string_literal: true

require "json"
require "fileutils"

module Candle
  # Writes a safetensors checkpoint as a GGUF file that llama.cpp and {LLM} load: weights in quantized blocks, metadata,
  # tokenizer and chat template. Blocks are made by the rules of llama.cpp's own quantizer.
  #
  # A tensor is read, quantized and written before the next one, and so is each expert of a layer, so that memory does
  # not grow with the model. The file gets its name when it is whole: an interrupted run leaves nothing.
  #
  # @example
  #   require "tmpdir"
  #   Dir.mktmpdir do |directory|
  #     source = "spec/fixtures/tiny/decoders/llama"
  #     path = Candle::Quantizer.quantize(source, to: "#{directory}/llama.gguf", type: "q8_0")
  #     Candle::LLM.from_pretrained(path).model_info[:architecture] # => "llama"
  #   end
  class Quantizer
    # By name: the number of the file type, and the type of most weights.
    TYPES = GgufMix::TYPES
    # Other names of the same.
    ALIASES = GgufMix::ALIASES
    # Block types that need the importance of columns.
    WEIGHTED = %w[iq1_s iq1_m iq2_xxs iq2_xs iq2_s].freeze
    # GGUF's numbers.
    POOLING = { "mean" => 1, "cls" => 2, "lasttoken" => 3 }.freeze
    LONG = { "mean" => "mean_tokens", "cls" => "cls_token" }.freeze
    private_constant :WEIGHTED, :POOLING, :LONG

    class << self
      # @param source [String, Pathname] a directory with a safetensors checkpoint, or a Hugging Face id
      # @param to [String, Pathname] the file to write; it is replaced
      # @param type [String, Symbol] one of {TYPES}
      # @param imatrix [String, Pathname, nil] an importance matrix of the model, from {.imatrix} or llama.cpp's
      #   `llama-imatrix`: columns with large inputs get smaller errors
      # @param calibration [String, Pathname, nil] a file with a text like those that the model will read; the
      #   importance matrix is measured on it
      # @param shard_size [Integer, nil] bytes after which a new file begins, `name-00001-of-00003.gguf`
      # @param revision [String, nil] of a Hugging Face id
      # @param progress [Boolean, #call] true for a progress bar on a terminal; what answers `call` gets `(done, total)`
      # @return [String] the path of the file, or of the first one
      # @raise [UnsupportedModelError] when the model type or its tokenizer has no GGUF form here
      # @raise [CorruptModelError] when the checkpoint is damaged
      def quantize(source, to:, type: "q4_k_m", imatrix: nil, calibration: nil, shard_size: nil, revision: nil,
                   progress: false)
        raise ArgumentError, "give imatrix: or calibration:, not both" if imatrix && calibration

        unless shard_size.nil? || (shard_size.is_a?(Integer) && shard_size.positive?)
          raise ArgumentError, "shard_size: must be a positive number of bytes, not #{shard_size.inspect}"
        end

        name = GgufMix.named(type, importance: imatrix || calibration)
        directory = directory(source, revision)
        importance = imatrix && ImportanceMatrix.open(imatrix)
        writer = new(directory, name, importance)
        writer.measure(ModuleInputs.of(directory, calibration, progress: progress)) if calibration
        writer.write(TextInput.path(to, "to"), shard_size, progress)
      end

      # Measures how much the columns of a model's weights matter, while it reads a text, and writes it as a file for
      # {.quantize} or for llama.cpp's quantizer.
      #
      # @param source [String, Pathname] as for {.quantize}
      # @param text [String, Pathname] a file with a text like those that the model will read, some hundred kilobytes
      # @param to [String, Pathname] the file to write; it is replaced
      # @param context [Integer] how many tokens the model reads at a time
      # @param device [String, Symbol, Device, nil] where the model reads
      # @param revision [String, nil] of a Hugging Face id
      # @param progress [Boolean, #call] as for {.quantize}
      # @return [String] the path of the file
      # @raise [InvalidInputError] when the text is shorter than two tokens
      def imatrix(source, text:, to:, context: ModuleInputs::CONTEXT, device: nil, revision: nil, progress: false)
        directory = directory(source, revision)
        writer = new(directory, "f32")
        inputs = ModuleInputs.of(directory, text, context: context, device: device, progress: progress)
        writer.write_importance(TextInput.path(to, "to"), inputs)
      end

      # Writes a quantized safetensors checkpoint with dense weights: its files, without `quantization_config`.
      #
      # @param source [String, Pathname] a directory with a safetensors checkpoint, or a Hugging Face id
      # @param to [String, Pathname] the directory to write, which must not exist
      # @param dtype [String, Symbol] `f32`, `f16` or `bf16`
      # @param revision [String, nil] of a Hugging Face id
      # @param progress [Boolean, #call] as for {.quantize}
      # @return [String] the directory
      # @raise [UnsupportedModelError] when the method of quantization is not supported
      def convert(source, to:, dtype: "bf16", revision: nil, progress: false)
        unless DenseWriter::TYPES.key?(dtype.to_s)
          raise ArgumentError, "dtype: must be one of #{DenseWriter::TYPES.keys.join(", ")}, not #{dtype.inspect}"
        end

        path = TextInput.path(to, "to")
        raise ArgumentError, "#{path} exists already" if File.exist?(path)

        DenseWriter.new(directory(source, revision), dtype.to_s).write(path, Progress.for(progress))
      end

      private

      def directory(source, revision)
        path = TextInput.path(source, "source")
        return path if File.directory?(path)
        if File.exist?(path)
          raise UnsupportedModelError, "#{path} is a file: quantize a directory with a safetensors checkpoint"
        end

        Hub.snapshot(path, revision: revision, files: CheckpointFiles.of(Hub.files(path, revision: revision)))
      end
    end

    # @api private
    def initialize(directory, type, importance = nil)
      @directory = directory
      @type = type
      @importance = importance
      @config = json("config.json") || raise(ModelNotFoundError, "#{directory} has no config.json")
      @weights = Weights.open(directory)
      @layout = GgufLayout.new(@config, @weights, File.join(directory, "config.json"))
    end

    # @api private
    def write(path, shard_size, progress)
      tensors = @layout.tensors
      tensors = tensors.zip(mix.types(tensors)).map { |tensor, type| tensor.merge(type: tensor[:data] ? "f32" : type) }
      bar = Progress.for(progress)
      GgufWriter.new(path, metadata, tensors, shard_size).write do |tensor, done|
        bar&.call(done, tensors.size)
        tensor[:data] ? [tensor[:data]] : parts(tensor)
      end
    end

    # @api private
    def measure(inputs)
      @importance = ImportanceMatrix.measured(@layout, inputs)
    end

    # @api private
    def write_importance(path, inputs)
      ImportanceMatrix.write(path, @layout, inputs)
    end

    private

    # The bytes of a tensor; those of experts one after the other.
    def parts(tensor)
      return [shifted(tensor)] if tensor[:add]

      sources = Array(tensor[:from])
      importance = importance_of(tensor, sources.size)
      if WEIGHTED.include?(tensor[:type]) && importance.none?
        raise CorruptModelError, "the importance matrix says nothing of #{tensor[:name]}, which #{tensor[:type]} needs"
      end

      sources.zip(importance).lazy.map do |name, columns|
        @weights.encoded(name, tensor[:type], rows: tensor[:rows], importance: columns)
      end
    end

    # Of each source; one that is a stack of matrices has those of all, one after the other.
    def importance_of(tensor, sources)
      *before, row = tensor[:shape]
      stack = sources == 1 && before.size > 1 ? before.first : 1
      found = @importance&.of(tensor[:name], sources * stack, row) || []
      found.each_slice(stack).map { |part| part.flatten if part.all? }
    end

    # Norms of models that add to them when they run.
    def shifted(tensor)
      numbers = @weights.encoded(tensor[:from], "f32").unpack("e*")
      numbers.map { |number| number + tensor[:add] }.pack("e*")
    end

    def json(name)
      path = File.join(@directory, name)
      return unless File.file?(path)

      found = JSON.parse(File.read(path, encoding: "UTF-8"))
      found.is_a?(Hash) ? found : raise(CorruptModelError, "#{path} is not a JSON object")
    rescue JSON::ParserError, EncodingError
      raise CorruptModelError, "#{path} is not valid JSON"
    end

    def metadata
      name = @config["_name_or_path"].to_s
      name = File.basename(File.expand_path(@directory)) if name.empty?
      general = { "general.architecture" => @layout.architecture, "general.type" => "model",
                  "general.name" => File.basename(name), "general.file_type" => GgufWriter.u32(TYPES[@type].first),
                  "general.quantization_version" => GgufWriter.u32(2) }
      general.merge(@layout.metadata, pooling, vocabulary.metadata)
    end

    # How the files of sentence-transformers make a vector of a text.
    def pooling
      said = json("1_Pooling/config.json") or return {}
      names = said["pooling_mode"] || POOLING.keys.select { |key| said["pooling_mode_#{LONG.fetch(key, key)}"] }
      mode = Array(names).one? ? POOLING[Array(names).first] : nil
      raise UnsupportedModelError, "#{@directory}: its pooling has no GGUF form" unless mode

      { "#{@layout.architecture}.pooling_type" => GgufWriter.u32(mode) }
    end

    def vocabulary
      template = File.join(@directory, "chat_template.jinja")
      GgufVocabulary.new(json("tokenizer.json"), json("tokenizer_config.json") || {}, @config,
                         size: @layout.vocabulary_size, file: File.join(@directory, "tokenizer.json"),
                         template: File.file?(template) ? File.read(template, encoding: "UTF-8") : nil)
    end

    def mix
      GgufMix.new(@type, architecture: @layout.architecture, layers: @layout.layer_count, groups: @layout.group_count,
                         experts: @layout.expert_count.to_i, tied: @layout.tied?, importance: !@importance.nil?)
    end
  end
end
