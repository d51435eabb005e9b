# frozen_string_literal: true

# Takes numbers from the standard input, makes an input of each and gives it to the gem. Answers a line of JSON.
require "candle"
require "fileutils"
require "timeout"
require "tmpdir"
require_relative "../../../spec/support/seeded_models"
require_relative "../../../spec/support/tiny_folder"
require_relative "appends"
require_relative "mutations"
require_relative "arguments"
require_relative "circumstances"
require_relative "outliers"
require_relative "preemption"
require_relative "requests"
require_relative "image_models"

# The inputs of each kind, and what is done with them.
class Inputs
  ROOT = TinyFolder.fixtures
  # A caller may be told so of what he gave; of a file only Candle's own errors tell.
  FOR_ARGUMENTS = [ArgumentError, TypeError, IndexError, FrozenError, Timeout::Error, SystemCallError].freeze
  # What objects of the attack raise themselves.
  OWN = [/\Anot today\z/, /uncaught throw/].freeze
  SECONDS = 8

  def initialize(kind, seed)
    @kind = kind
    @seed = seed
    @folder = Dir.mktmpdir("attack")
    at_exit { FileUtils.rm_rf(@folder) }
    # What methods that save are told to write stays here.
    Dir.chdir(@folder)
    Candle.logger = Logger.new(File::NULL)
    @hostile = HostileArguments.new
  end

  # @return [Hash] the growth of the process, and the error where that says too little
  def give(number)
    before = highest
    random = Random.new((((@seed * 1_000_003) + @kind.sum) * 1_000_003) + number)
    unclear = outcome(random)
    { growth: highest - before, unclear: unclear }.compact
  end

  private

  def outcome(random)
    Timeout.timeout(SECONDS) { send(:"try_#{@kind}", random) }
    nil
  rescue Candle::InternalError => e
    "#{@called}: #{e.full_message(highlight: false)[0, 600]}".b.force_encoding("UTF-8").scrub("?")
  rescue Candle::Error
    nil
  rescue Exception => e # rubocop:disable Lint/RescueException
    return if allowed?(e)

    "#{@called}: #{e.class}: #{e.message[0,
                                         300]} #{e.backtrace&.first(3)&.join(" ")}".b.force_encoding("UTF-8").scrub("?")
  end

  def allowed?(error)
    return true if error.is_a?(Timeout::Error)

    @kind == "arguments" && (FOR_ARGUMENTS.any?(error.class) || FOR_ARGUMENTS.any? { |known| error.is_a?(known) } ||
                             OWN.any? { |pattern| pattern.match?(error.message) })
  end

  def highest = File.read("/proc/self/status")[/VmHWM:\s+(\d+)/, 1].to_i

  # A copy of a fixture in which one file is damaged, until the next one is wanted.
  def damaged(name, file)
    replace(*@original) if @original
    copy = copy_of(name)
    path = Dir[File.join(copy, file)].min
    @original = [path, File.binread(path)]
    replace(path, yield(@original.last))
    copy
  end

  def copy_of(name)
    (@copies ||= {})[name] ||= File.join(@folder, name.delete_prefix("../")).tap do |copy|
      FileUtils.mkdir_p(File.dirname(copy))
      next SeededModels.write(File.basename(name), FileUtils.mkdir(copy).first) if name.start_with?("seeded/")

      FileUtils.cp_r(File.join(ROOT, "tiny", name), copy)
      HostileImageModels.materialize(copy)
    end
  end

  # By another file: models that are still open may read the one before.
  def replace(path, bytes)
    File.delete(path)
    File.binwrite(path, bytes)
  end

  def try_safetensors(random)
    copy = damaged("bert-sentence", "model.safetensors") { |bytes| Mutations.new(random).safetensors(bytes) }
    Candle::EmbeddingModel.from_pretrained(copy, device: "cpu").embed("the fox")
  end

  # Parts of weights that other libraries quantized, and what the configuration says of them.
  def try_quantized(random)
    mutations = Mutations.new(random)
    name = "../quantized/#{mutations.pick(Dir.children(File.join(ROOT, "quantized")).sort)}"
    copy = if random.rand(3).zero?
             damaged(name, "config.json") { |bytes| mutations.json(bytes) }
           else
             damaged(name, "model.safetensors") { |bytes| mutations.safetensors(bytes) }
           end
    weights = Candle::Weights.open(copy)
    weights.names.each { |tensor| weights.tensor(tensor, device: "cpu") }
  end

  # Checkpoints that become GGUF files, and the importance of their columns.
  def try_quantizer(random)
    mutations = Mutations.new(random)
    name = mutations.pick(%w[bert decoders/llama3 decoders/gemma2-even decoders/phi3-longrope decoders/mixtral])
    file = mutations.pick(%w[config.json config.json tokenizer.json tokenizer_config.json model.safetensors])
    copy = damaged(name, file) do |bytes|
      file == "model.safetensors" ? mutations.safetensors(bytes) : mutations.json(bytes)
    end
    type = mutations.pick(%w[f32 q4_0 q4_k_m iq3_s mxfp4 nvfp4 tq1_0])
    Candle::Quantizer.quantize(copy, to: File.join(@folder, "written.gguf"), type: type)
  end

  def try_outliers(random)
    @outliers ||= OutlierModel.new(name_of("bert-sentence"), File.join(@folder, "outliers"))
    @outliers.check(random)
  end

  def try_gguf(random)
    copy = damaged("gguf-decoders/llama", "*.gguf") { |bytes| Mutations.new(random).bytes(bytes) }
    Candle::LLM.from_pretrained(Dir[File.join(copy, "*.gguf")].first, device: "cpu").generate("the", max_length: 2)
  end

  def try_torch(random)
    source = Dir[File.join(ROOT, "weights", "*.{bin,pt}")].sort
    path = File.join(@folder, "pytorch_model.bin")
    mutations = Mutations.new(random)
    File.binwrite(path, mutations.bytes(File.binread(mutations.pick(source))))
    weights = Candle::Weights.open(path)
    weights.each { |name, _| weights.tensor(name, device: "cpu") }
  end

  def try_tokenizer(random)
    copy = damaged("bert-sentence", "tokenizer.json") { |bytes| Mutations.new(random).json(bytes) }
    tokenizer = Candle::Tokenizer.from_file(File.join(copy, "tokenizer.json"))
    ["the quick fox", "", "\u{1F600} caf\u00E9 #{"a" * 3000}"].each do |text|
      tokenizer.decode(tokenizer.encode(text))
    end
  end

  def try_config(random)
    name = Mutations.new(random).pick(%w[bert-sentence modernbert deberta-v2 nomic-bert albert mpnet decoders/llama])
    copy = damaged(name, "config.json") { |bytes| Mutations.new(random).json(bytes) }
    Candle::EmbeddingModel.from_pretrained(copy, device: "cpu").embed("the fox")
  end

  # A decoder whose layers keep states beside keys and values.
  def try_states(random)
    mutations = Mutations.new(random)
    file = mutations.pick(%w[config.json config.json model.safetensors])
    copy = damaged("seeded/falcon_h1", file) do |bytes|
      file == "config.json" ? mutations.json(bytes) : mutations.safetensors(bytes)
    end
    llm = Candle::LLM.from_pretrained(copy, device: "cpu")
    2.times { llm.generate("the fox the fox", max_length: 4, speculative: :lookup) }
  end

  def try_modules(random)
    mutations = Mutations.new(random)
    name, file = mutations.pick([%w[sparse-router router_config.json], %w[splade modules.json],
                                 %w[splade 1_SpladePooling/config.json], %w[colbert config_sentence_transformers.json],
                                 %w[colbert modules.json], %w[colbert 1_Dense/config.json],
                                 %w[colbert-stanford artifact.metadata], %w[bert-sentence modules.json]])
    copy = damaged(name, file) { |bytes| mutations.json(bytes) }
    model = Candle::ModelKind.class_for(Candle::ModelKind.of(name_of(name))).from_pretrained(copy, device: "cpu")
    model.is_a?(Candle::LateInteractionModel) ? model.score("a", ["the fox"]) : model.embed("the fox")
  end

  def try_image(random)
    mutations = Mutations.new(random)
    path = File.join(@folder, "picture")
    File.binwrite(path, mutations.bytes(File.binread(mutations.pick(Dir[File.join(ROOT, "images/*.*")].sort))))
    @classifier ||= Candle::ImageClassifier.from_pretrained(name_of("vit-classifier"), device: "cpu")
    @classifier.classify(path)
  end

  # Files that are decoded, and what is said of models that hear.
  def try_audio(random)
    mutations = Mutations.new(random)
    return try_hearing(mutations) if random.rand(3).zero?

    path = File.join(@folder, "sound")
    files = Dir[File.join(ROOT, "audio/*.{wav,flac,ogg,opus,mp3,m4a,mkv,webm}")].sort
    bytes = mutations.bytes(File.binread(mutations.pick(files)))
    File.binwrite(path, bytes)
    audio = Candle::Audio.open(random.rand(2).zero? ? path : bytes)
    audio.resample(mutations.pick([8000, 16_000, 44_100])).samples(as: :packed)
    @hearing ||= Candle::Transcriber.from_pretrained(name_of("speech/wav2vec2"), device: "cpu")
    @hearing.transcribe(path) if audio.duration < 4
  end

  def try_hearing(mutations)
    name, kind = mutations.pick([["whisper", Candle::Transcriber], ["wav2vec2", Candle::Transcriber],
                                 ["moonshine", Candle::Transcriber], ["parakeet", Candle::Transcriber],
                                 ["clap", Candle::AudioEmbeddingModel],
                                 ["wav2vec2-voices", Candle::AudioEmbeddingModel],
                                 ["ast-classifier", Candle::AudioClassifier],
                                 ["wavlm-classifier", Candle::AudioClassifier]])
    files = Dir.children(name_of("speech/#{name}")).grep(/config\.json\z|\Avocab\.json\z/).sort
    copy = damaged("speech/#{name}", mutations.pick(files)) { |bytes| mutations.json(bytes) }
    model = kind.from_pretrained(copy, device: "cpu")
    method = %i[transcribe classify embed].find { |known| model.respond_to?(known) }
    model.public_send(method, File.join(ROOT, "audio/tones.wav"))
  end

  def try_vision(random)
    mutations = Mutations.new(random)
    @image_models ||= HostileImageModels.new(ROOT)
    name, kind, wanted = @image_models.pick(mutations)
    file = mutations.pick(@image_models.damageable(copy_of(name)))
    @called = "#{name} #{file}"
    copy = damaged(name, file) do |bytes|
      case File.extname(file)
      when ".json" then mutations.json(bytes)
      when ".gguf" then mutations.bytes(bytes)
      else mutations.safetensors(bytes)
      end
    end
    @image_models.ask(Candle.const_get(kind).from_pretrained(copy, device: "cpu"), picture, wanted)
  end

  # Counts, sizes and orders that configurations of pages may have wrong.
  def try_pages(random)
    mutations = Mutations.new(random)
    @image_models ||= HostileImageModels.new(ROOT)
    @called = @image_models.pick_page(mutations)
    copy = damaged(@called, "config.json") { |text| @image_models.pages(text, mutations) }
    @image_models.ask(Candle::ObjectDetector.from_pretrained(copy, device: "cpu"), picture, nil)
  end

  def picture = File.join(ROOT, "images/photo.png")

  def try_seq2seq(random)
    mutations = Mutations.new(random)
    folder = mutations.pick(Dir[File.join(ROOT, "tiny/seq2seq/*")].sort)
    files = Dir.children(folder).grep(/config|spiece|\.spm|\.model\z|vocab|tokenizer/).sort
    name = mutations.pick(files)
    copy = damaged(File.join("seq2seq", File.basename(folder)), name) do |bytes|
      name.end_with?(".json") ? mutations.json(bytes) : mutations.bytes(bytes)
    end
    Candle::Seq2Seq.from_pretrained(copy, device: "cpu").generate("the fox", max_length: 2)
  end

  def try_index(random)
    path = File.join(@folder, "vectors.index")
    index = Candle::Index.new(dimension: 4, dtype: Mutations.new(random).pick(%i[f32 int8 binary]))
    index.add_all({ "a" => [1.0, 2.0, 3.0, 4.0], 7 => [4.0, 3.0, 2.0, 1.0] })
    index.add_all((1000...1300).map { |id| [id, [id, 1.0, 2.0, 3.0]] }).build_graph(links: 2) if random.rand(2).zero?
    index.save(path)
    File.binwrite(path, Mutations.new(random).bytes(File.binread(path)))
    Candle::Index.open(path).search([1.0, 1.0, 1.0, 1.0], top_k: 2)
  end

  def try_lock(random)
    path = File.join(@folder, "models.lock")
    text = JSON.generate(red_candle_models: 1, models: [{ id: "bert", path: name_of("bert"), commit: nil, files: [
                           { name: "config.json", size: 635, sha256: "0" * 64 }
                         ] }])
    File.binwrite(path, Mutations.new(random).json(text))
    Candle.models_lock = path
    Candle::EmbeddingModel.from_pretrained(name_of("bert"), device: "cpu")
  ensure
    Candle.models_lock = nil
  end

  %w[interrupts forks compaction closing hub saves].each do |name|
    define_method(:"try_#{name}") do |random|
      @circumstances ||= Circumstances.new(ROOT)
      @circumstances.public_send(name, random)
    end
  end

  def try_appends(random)
    @appends ||= Appends.new(ROOT, @folder)
    @appends.attack(random)
  end

  def try_preemption(random)
    @preemption ||= Preemption.new(ROOT)
    @preemption.attack(random)
  end

  %w[server worker fields].each do |name|
    define_method(:"try_#{name}") do |random|
      @requests ||= HostileRequests.new(ROOT)
      @requests.public_send(name, random) { |asked| @called = asked }
    end
  end

  def name_of(name) = File.join(ROOT, "tiny", name)

  def try_template(random)
    templates = Dir[File.join(ROOT, "chat_templates", "**/*.jinja")].sort
    text = Mutations.new(random).spliced(templates.map { |path| File.read(path, encoding: "UTF-8") })
    messages = [{ role: "user", content: "hello" }, { role: "assistant", content: "yes" }]
    llm.apply_chat_template(messages, chat_template: text)
  end

  SCHEMAS = ['{"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}',
             '{"type": "array", "items": {"enum": ["x", 1, null]}, "maxItems": 4}',
             '{"anyOf": [{"type": "string", "pattern": "^a+$"}, {"$ref": "#/definitions/b"}], ' \
             '"definitions": {"b": {"type": "number", "multipleOf": 2}}}'].freeze
  REGEXES = ["(a|b)*c", "[a-z]{1,20}@[a-z]+\\.com", "\\d{3}-\\d{4}", "(foo|(bar|baz)+)?x*", "\\p{L}+"].freeze
  GRAMMARS = ["start: \"yes\" | \"no\"", "start: item+\nitem: /[a-z]/ \",\"\n", "start: a\na: b?\nb: \"x\" a"].freeze

  def try_schema(random)
    llm.generate_structured("a", schema: JSON.parse(Mutations.new(random).json(Mutations.new(random).pick(SCHEMAS)),
                                                    max_nesting: false), max_length: 4)
  rescue JSON::ParserError
    nil
  end

  def try_regex(random)
    llm.generate_regex("a", pattern: Mutations.new(random).spliced(REGEXES), max_length: 4)
  end

  def try_grammar(random)
    llm.generate("a", grammar: Mutations.new(random).spliced(GRAMMARS), max_length: 4)
  end

  def try_arguments(random)
    @hostile.attack(random) do |name, call|
      @called = name
      call.call
    end
  end

  def llm
    @llm ||= Candle::LLM.from_pretrained(File.join(ROOT, "tiny/decoders/llama"), device: "cpu")
  end
end

inputs = Inputs.new(ARGV[0], Integer(ARGV[1]))
# The numbers are not for a method that is given the standard input to read.
numbers = $stdin.dup
$stdin.reopen(File::NULL)
$stdout.sync = true
numbers.each_line { |line| puts JSON.generate(inputs.give(Integer(line))) }
