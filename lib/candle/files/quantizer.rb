# frozen_string_literal: true

require "json"
require "fileutils"

module Candle
  # Writes a safetensors checkpoint as a GGUF file that llama.cpp and {LLM} load: weights in quantized blocks, metadata,
  # tokenizer and chat template. Blocks are made by the rules of llama.cpp's own quantizer.
  #
  # A tensor is read, quantized and written before the next one, so that memory does not grow with the model. The file
  # gets its name when it is whole: an interrupted run leaves nothing.
  #
  # @example
  #   require "tmpdir"
  #   Dir.mktmpdir do |directory|
  #     source = "spec/fixtures/tiny/decoders/llama"
  #     path = Candle::Quantizer.quantize(source, to: "#{directory}/llama.gguf", type: "q8_0")
  #     Candle::LLM.from_pretrained(path).model_info[:architecture] # => "llama"
  #   end
  class Quantizer
    # By name: the number of the file type, the type of most weights, and the rule for others.
    TYPES = {
      "f32" => [0, "f32"], "f16" => [1, "f16"], "bf16" => [32, "bf16"],
      "q4_0" => [2, "q4_0"], "q4_1" => [3, "q4_1"], "q5_0" => [8, "q5_0"], "q5_1" => [9, "q5_1"], "q8_0" => [7, "q8_0"],
      "q2_k" => [10, "q2_k"], "q3_k_s" => [11, "q3_k"], "q3_k_m" => [12, "q3_k"], "q3_k_l" => [13, "q3_k"],
      "q4_k_s" => [14, "q4_k"], "q4_k_m" => [15, "q4_k"], "q5_k_s" => [16, "q5_k"], "q5_k_m" => [17, "q5_k"],
      "q6_k" => [18, "q6_k"], "iq4_nl" => [25, "iq4_nl"], "iq4_xs" => [30, "iq4_xs"]
    }.freeze
    # Other names of the same.
    ALIASES = { "q3_k" => "q3_k_m", "q4_k" => "q4_k_m", "q5_k" => "q5_k_m" }.freeze
    # What a row that isn't whole blocks of 256 becomes.
    NARROW = { "q2_k" => "q4_0", "q3_k" => "q4_0", "q4_k" => "q5_0", "q5_k" => "q5_1", "q6_k" => "q8_0",
               "iq4_xs" => "iq4_nl" }.freeze
    # Types that have no better one for the output.
    EXACT = %w[f32 f16 bf16 q8_0].freeze
    private_constant :NARROW, :EXACT

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

        directory = directory(source, revision)
        importance = imatrix && ImportanceMatrix.open(imatrix)
        writer = new(directory, kind(type), importance)
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

      def kind(type)
        name = type.to_s.downcase
        name = ALIASES.fetch(name, name)
        return name if TYPES.key?(name)

        raise ArgumentError, "type: #{type.inspect} is unknown; known are #{TYPES.keys.join(", ")}"
      end

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
      tensors = @layout.tensors.map { |tensor| tensor.merge(type: type_of(tensor)) }
      bar = Progress.for(progress)
      GgufWriter.new(path, metadata, tensors, shard_size).write do |tensor, done|
        bar&.call(done, tensors.size)
        tensor[:data] || bytes(tensor)
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

    def bytes(tensor)
      sources = Array(tensor[:from])
      importance = @importance&.of(tensor[:name], sources.size, tensor[:shape].last) || []
      sources.zip(importance).map do |name, columns|
        @weights.encoded(name, tensor[:type], heads: tensor[:heads], importance: columns)
      end.join
    end

    def json(name)
      path = File.join(@directory, name)
      JSON.parse(File.read(path, encoding: "UTF-8")) if File.file?(path)
    rescue JSON::ParserError
      raise CorruptModelError, "#{path} is not valid JSON"
    end

    def metadata
      name = @config["_name_or_path"].to_s
      name = File.basename(File.expand_path(@directory)) if name.empty?
      general = { "general.architecture" => @layout.architecture, "general.type" => "model",
                  "general.name" => File.basename(name), "general.file_type" => GgufWriter.u32(TYPES[@type].first),
                  "general.quantization_version" => GgufWriter.u32(2) }
      general.merge(@layout.metadata, vocabulary.metadata)
    end

    def vocabulary
      template = File.join(@directory, "chat_template.jinja")
      GgufVocabulary.new(json("tokenizer.json"), json("tokenizer_config.json") || {}, @config,
                         size: @layout.vocabulary_size, file: File.join(@directory, "tokenizer.json"),
                         template: File.file?(template) ? File.read(template, encoding: "UTF-8") : nil)
    end

    # llama.cpp's choice for a tensor, or what its rows allow.
    def type_of(tensor)
      # Routers stay exact.
      return "f32" if tensor[:shape].size < 2 || tensor[:data] || tensor[:name].include?("ffn_gate_inp")

      type = wanted(tensor[:name])
      row = tensor[:shape].last
      type = NARROW.fetch(type, type) unless (row % 256).zero?
      return type if %w[f32 f16 bf16].include?(type)

      (row % 32).zero? ? type : "f16"
    end

    def wanted(name)
      usual = TYPES[@type].last
      return usual if EXACT.include?(usual)
      return "q6_k" if name == "output.weight" || (name == "token_embd.weight" && @layout.tied?)

      layer = name[/\Ablk\.(\d+)\./, 1]
      layer ? in_layer(layer.to_i, name[/\Ablk\.\d+\.(.*)\.weight\z/, 1]) || usual : usual
    end

    # The better type of a part of a layer, if it has one.
    def in_layer(layer, part)
      case part
      when "attn_v" then of_values(layer)
      when /\Affn_down/ then of_down(layer)
      when "attn_output"
        { "q2_k" => "q3_k", "q3_k_m" => "q4_k", "q3_k_l" => "q5_k" }[@type]
      end
    end

    def of_values(layer)
      case @type
      when "q2_k", "iq4_nl", "iq4_xs" then of_shared_values
      when "q3_k_m" then layer < 2 ? "q5_k" : "q4_k"
      when "q3_k_l" then "q5_k"
      when "q4_k_s" then layer < 4 ? "q5_k" : nil
      when "q4_k_m", "q5_k_m" then more_bits?(layer) ? "q6_k" : nil
      end
    end

    # Values that many heads share are worth more bits.
    def of_shared_values
      many = @layout.group_count >= 4
      return many ? "q5_k" : nil unless @type == "q2_k"

      many ? "q4_k" : "q3_k"
    end

    def of_down(layer)
      count = @layout.layer_count
      case @type
      when "q2_k" then "q3_k"
      when "q3_k_m"
        if layer < count / 16
          "q5_k"
        else
          more_bits?(layer) ? "q4_k" : nil
        end
      when "q3_k_l" then "q5_k"
      when "q4_k_s" then layer < count / 8 ? "q5_k" : nil
      when "q4_k_m", "q5_k_m" then more_bits?(layer) ? "q6_k" : nil
      else of_first_down(layer < count / 8)
      end
    end

    # Inputs of the first layers are so uneven that an importance matrix would leave large errors without minimums.
    def of_first_down(first)
      return unless first

      @importance ? { "q4_0" => "q4_1", "q5_0" => "q5_1" }[@type] : { "iq4_nl" => "q5_k", "iq4_xs" => "q5_k" }[@type]
    end

    # The first and the last eighth of the layers, and every third between them.
    def more_bits?(layer)
      count = @layout.layer_count
      layer < count / 8 || layer >= 7 * count / 8 || (layer - (count / 8)) % 3 == 2
    end
  end
end
