# frozen_string_literal: true

require "fileutils"
require "forwardable"
require_relative "../../../spec/support/tiny_folder"

# Hostile arguments to every public method that the signatures name.
class HostileArguments
  SIGNATURES = File.expand_path("../../../sig/candle", __dir__)
  TINY = TinyFolder.path
  FOLDERS = "{.,files,generation,media,models,runtime,support,text}"
  # What loads the instance of a class whose methods are called.
  INSTANCES = {
    EmbeddingModel: "bert-sentence", Reranker: "bert-reranker", NER: "bert-token", Classifier: "bert-sequence",
    MaskedLM: "bert-masked", LLM: "decoders/llama", SparseEmbeddingModel: "splade", LateInteractionModel: "colbert",
    QuestionAnswerer: "bert-question", GLiNER: "gliner", GLiClass: "gliclass", Seq2Seq: "seq2seq/t5", CLIP: "clip",
    VLM: "llava",
    ImageEmbeddingModel: "dinov2", ImageClassifier: "vit-classifier", ObjectDetector: "yolos",
    ImageSegmenter: "segformer", DepthEstimator: "depth_anything", DocumentReader: "trocr",
    Transcriber: "speech/whisper", AudioClassifier: "speech/wav2vec2-classifier",
    AudioEmbeddingModel: "speech/hubert-embedding", VoiceActivityDetector: "speech/silero"
  }.freeze
  MADE = {
    Tokenizer: -> { Candle::Tokenizer.from_pretrained(File.join(TINY, "bert")) },
    Tensor: -> { Candle::Tensor.new([[1.0, 2.0], [3.0, 4.0]]) },
    Weights: -> { Candle::Weights.open(File.join(TINY, "bert")) },
    GenerationConfig: -> { Candle::GenerationConfig.default },
    Device: -> { Candle::Device.cpu },
    Audio: -> { Candle::Audio.open(File.expand_path("../audio/slow.wav", TINY)) },
    Image: -> { Candle::Image.open(File.expand_path("../images/photo.png", TINY)) },
    Index: -> { Candle::Index.new(dimension: 2).add("a", [1.0, 2.0]) },
    Session: -> { Candle::LLM.from_pretrained(File.join(TINY, INSTANCES[:LLM])).session },
    TextSplitter: -> { Candle::TextSplitter.new(size: 20) },
    Pipeline: -> { Candle::Pipeline.new("embedding", File.join(TINY, INSTANCES[:EmbeddingModel])) },
    DType: -> { Candle::DType.parse(:f32) }
  }.freeze
  # What has no instances worth attacking: results and errors, those that read the command line, serve, log or go to the
  # hub, settings of the whole process, parts of a generation that only the model makes, and those that write
  # checkpoints, whose sources the kind "quantized" damages.
  OTHER_CLASSES = %i[AnswerReader AnswerRun CLI Completion DenseWriter EitherKeys GgufConfig GgufExperts GgufKeys
                     GgufLayout GgufMix GgufRope GgufVocabulary GgufWindows GgufWriter
                     ImportanceMatrix IndexDocuments IndexJournal TermIndex
                     HarmonySplitter Instructions LiteralContent LogSubscriber LoggingConfiguration MarkedText
                     ModelRegistry ModelsLock ModuleInputs Progress Quantizer Railtie Reasoning ReasoningFormat
                     ReasoningSplitter Server Transcription Worker].freeze
  # They end the instance, answer from the network or wait for someone.
  LEFT_OUT = %i[initialize close configure follow synchronize embed_each generate_each register_tokenizer new].freeze

  # Says what it is told to, where Ruby asks for a conversion.
  class Odd
    def initialize(method, answer)
      define_singleton_method(method) { answer.respond_to?(:call) ? answer.call : answer }
    end
  end

  def initialize
    @instances = {}
  end

  # Calls a method with arguments that are mostly wrong.
  #
  # @yieldparam name [String] what is called
  # @yieldparam call [Proc] calls it
  def attack(random)
    @random = random
    name, method, on_class = pick(methods)
    receiver = on_class ? Candle.const_get(name) : instance(name)
    called = on_class ? receiver.method(method) : receiver.public_method(method)
    positional, keywords = arguments(parameters_of(called))
    yield "#{name}#{on_class ? "." : "#"}#{method}", -> { called.call(*positional, **keywords) { |*| nil } }
  end

  # Calls every method with something odd in each of its arguments, alone and within others.
  #
  # @yieldparam name [String] what is called, and the argument
  # @yieldparam call [Proc] calls it
  def give_each
    wrong = strange.flat_map { |one| [one, [one], { "a" => one }] }
    methods.each do |name, method, on_class|
      called = on_class ? Candle.const_get(name).method(method) : instance(name).public_method(method)
      parameters = parameters_of(called)
      parameters.each_with_index do |(_, argument), at|
        wrong.product(["the dog", 1]) do |value, usual|
          positional, keywords = arguments_with(parameters, at, value, usual)
          yield "#{name} #{method} #{argument}", -> { called.call(*positional, **keywords) { |*| nil } }
        end
      end
    end
  end

  # @return [Array<Array(Symbol, String)>] every class of the gem with its signatures, errors left out
  def self.signatures
    files = Dir[File.join(SIGNATURES, FOLDERS, "*.rbs")].sort.map { |file| File.read(file) }
    named = files.to_h { |text| [text[/^  class (\w+)/, 1]&.to_sym, text] }
    named.reject { |name, _| name.nil? || name == :Error }
  end

  # @return [Array<Symbol>] the classes that nobody attacks and nobody left out
  def self.forgotten = signatures.keys - INSTANCES.keys - MADE.keys - OTHER_CLASSES

  # @return [Array<Array(Symbol, Symbol, Boolean)>] class, method, and whether it is the class's own
  def methods
    @methods ||= self.class.signatures.flat_map do |name, text|
      next [] unless INSTANCES.key?(name) || MADE.key?(name)

      found = text.scan(/^    def (self\.)?([a-z]\w*[?!]?):/).map { |own, method| [name, method.to_sym, !own.nil?] }
      found.reject { |_, method, _| LEFT_OUT.include?(method) || method.to_s.start_with?("from_pretrained") }
    end
  end

  private

  def pick(list) = list[@random.rand(list.size)]

  def instance(name)
    @instances[name] ||= MADE[name]&.call || Candle.const_get(name).from_pretrained(File.join(TINY, INSTANCES[name]))
  end

  # What a VLM asks its language model for takes nothing; what stands for any options takes those of a generation and of
  # an embedding.
  def parameters_of(called)
    return [] if called.source_location&.first == FORWARDED

    found = called.parameters.reject { |kind, _| kind == :block }
    return found unless found.reject! { |kind, _| kind == :keyrest }

    found + ((Candle::GenerationConfig::DEFAULTS.keys | OPTIONS) - found.map(&:last)).map { |name| [:key, name] }
  end

  def arguments(parameters)
    few = 1 + (parameters.size / 3)
    positional = []
    keywords = {}
    parameters.each do |kind, name|
      case kind
      when :req then positional << value
      when :opt, :rest then positional << value if @random.rand(2).zero?
      when :keyreq then keywords[name] = value
      when :key then keywords[name] = value if @random.rand(few).zero?
      end
    end
    keywords[:no_such_option] = value if @random.rand(20).zero?
    [positional, keywords]
  end

  # Objects without methods, invalid texts, and conversions that return the wrong type.
  def strange
    conversions = %i[to_str to_ary to_hash to_path to_s to_sym inspect each].map { |method| Odd.new(method, 7) }
    [BasicObject.new, "a".encode("UTF-16LE"), "\xDE\xAD".b, "\xFF", Odd.new(:to_str, nil), *conversions]
  end

  # All that must be there, and optional ones up to that place, with `wrong` there.
  def arguments_with(parameters, place, wrong, usual)
    positional = []
    keywords = {}
    parameters.each_with_index do |(kind, name), at|
      value = at == place ? wrong : usual
      case kind
      when :req then positional << value
      when :opt, :rest then positional << value if at <= place
      when :keyreq then keywords[name] = value
      when :key then keywords[name] = value if at == place
      end
    end
    [positional, keywords]
  end

  FORWARDED = Forwardable.instance_method(:def_delegators).source_location.first.freeze
  OPTIONS = %i[adapter chat_template images tools schema pooling prompt prompt_name].freeze
  USUAL = [nil, true, "", "the dog", ["the dog", "a"], 1, 2, 0.5, :cls, "[MASK]", { "a" => 1 }].freeze
  NUMBERS = [2**64, -1, 0, Float::NAN, Float::INFINITY, -2**70, 1r, Complex(1, 2), 10**30].freeze
  IMAGES = %w[photo.png animated.gif].freeze
  TEXTS = ["\xFF", "a\0b", "x" * 200_000, "\u{10FFFF}" * 5, "a".encode("UTF-16LE"), "\xDE\xAD".b].freeze
  OBJECTS = [Object.new, BasicObject.new, Class, :"a b", 1.., proc { 1 }, Struct.new(:a).new(1), $stdin].freeze
  LISTS = [[], {}, [nil], [[]], [{}], { nil => nil }, [1, "a", nil], [BasicObject.new], [["a"] * 3] * 3,
           [Float::NAN]].freeze
  private_constant :FORWARDED, :OPTIONS, :IMAGES, :USUAL, :NUMBERS, :TEXTS, :OBJECTS, :LISTS

  def value
    case @random.rand(7)
    when 0 then @random.rand(3).zero? ? picture : pick(USUAL)
    when 1 then pick(NUMBERS)
    when 2 then pick(TEXTS)
    when 3 then pick(OBJECTS)
    when 4 then pick(LISTS)
    when 5 then pick([cyclic_array, cyclic_hash, deep, Hash.new { |hash, key| hash[key] = 1 }])
    else odd
    end
  end

  # A copy in the working directory, made again each time: methods that save are given it too.
  def picture
    name = pick([*IMAGES, nil])
    return "data:image/png;base64,AAAA" unless name

    FileUtils.cp(File.expand_path("../images/#{name}", TINY), name)
    File.expand_path(name)
  end

  def odd
    method = pick(%i[to_str to_ary to_s to_sym to_path to_hash to_h to_a to_i to_int to_f inspect each])
    Odd.new(method, pick([nil, 7, -> { raise "not today" }, "\xFF", Object.new, [], -> { throw :nowhere }]))
  end

  def cyclic_array = [1].tap { |list| list << list }
  def cyclic_hash = { "a" => 1 }.tap { |hash| hash["self"] = hash }
  def deep = 5000.times.reduce([]) { |inner, _| [inner] }
end
