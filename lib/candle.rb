# frozen_string_literal: true

if defined?(Candle) && !Candle.instance_of?(Module)
  place = Object.const_source_location(:Candle).join(":")
  raise LoadError, "red-candle defines the module Candle, but Candle is a #{Candle.class} here already (#{place}). " \
                   "Rename that one or put it into a module of its own, and require \"candle\" before it is used"
end

require "candle/version"
require "candle/errors"
require "candle/runtime/logging"
require "candle/native"
require "candle/runtime/self_test"
require "candle/runtime/build_info"
require "candle/runtime/utils"
require "candle/files/models_lock"
require "candle/shortcuts"

# Transformer models inside your Ruby process.
module Candle
  # What is loaded when it is first named.
  ON_USE = {
    EncodedInput: "media/encoded_input",
    Pipeline: "pipeline", IndexDocuments: "index/documents", IndexJournal: "index/journal",
    CheckpointFiles: "files/checkpoint_files", DenseWriter: "files/dense_writer",
    GgufConfig: "files/gguf_config", GgufExperts: "files/gguf_experts", GgufKeys: "files/gguf_keys",
    GgufLayout: "files/gguf_layout", GgufMix: "files/gguf_mix", GgufRope: "files/gguf_rope",
    GgufWindows: "files/gguf_windows", ModuleInputs: "files/module_inputs",
    GgufVocabulary: "files/gguf_vocabulary", GgufWriter: "files/gguf_writer", Quantizer: "files/quantizer",
    ImportanceMatrix: "files/importance_matrix",
    FlorenceTasks: "models/florence_tasks", ModelGems: "files/model_gems", ModelKind: "files/model_kind",
    SourceHints: "files/source_hints",
    AnswerReader: "generation/answer_reader", AnswerRun: "generation/answer_run", Answering: "generation/answering",
    AnswerSplitter: "generation/answer_splitter",
    BulkGeneration: "generation/bulk_generation", Completion: "generation/completion",
    DeviceMap: "generation/device_map",
    FillInMiddle: "generation/fill_in_middle",
    GenerationConfig: "generation/generation_config", HarmonySplitter: "generation/harmony_splitter",
    Instructions: "generation/instructions",
    LiteralContent: "generation/literal_content", MarkedText: "generation/marked_text",
    LogitBias: "generation/logit_bias", Messages: "generation/messages", NamedTokens: "generation/named_tokens",
    Reasoning: "generation/reasoning",
    ReasoningFormat: "generation/reasoning_format", ReasoningSplitter: "generation/reasoning_splitter",
    Session: "generation/session",
    Speculation: "generation/speculation", TextTasks: "generation/text_tasks",
    EmbeddingModelType: "models/embedding_model_type", ImageLoading: "models/image_loading",
    Loading: "models/loading", Model: "models/model", Statistics: "models/statistics",
    Transcription: "models/transcription",
    EntityLabels: "recognizers/entity_labels", ExtractionSchema: "recognizers/extraction_schema",
    GazetteerEntityRecognizer: "recognizers/gazetteer_entity_recognizer", HybridNER: "recognizers/hybrid_ner",
    LabelRecognizer: "recognizers/label_recognizer",
    PatternEntityRecognizer: "recognizers/pattern_entity_recognizer", Redaction: "recognizers/redaction",
    SchemaExtraction: "recognizers/schema_extraction", SpanOverlaps: "recognizers/span_overlaps",
    DeviceUtils: "runtime/device_utils", Instrumentation: "runtime/instrumentation", Progress: "runtime/progress",
    JsonSchema: "structured/json_schema", RegexSyntax: "structured/regex_syntax",
    StructuredConstraint: "structured/structured_constraint", StructuredOutput: "structured/structured_output",
    Arguments: "support/arguments", Deprecation: "support/deprecation", EitherKeys: "support/either_keys",
    Hints: "support/hints", TextInput: "support/text_input", Uncopyable: "support/uncopyable",
    TextSplitter: "text/text_splitter",
    CallGuard: "tools/call_guard",
    Agent: "tools/agent", AgentEvent: "tools/agent_event", AgentResult: "tools/agent_result",
    AgentState: "tools/agent_state", ToolRunner: "tools/tool_runner",
    JsonCut: "tools/json_cut", Tool: "tools/tool",
    ToolCall: "tools/tool_call", ToolCallParser: "tools/tool_call_parser", ToolCallResult: "tools/tool_call_result",
    ToolFormat: "tools/tool_format", ToolFormats: "tools/tool_formats",
    ToolMessages: "tools/tool_messages", ToolStream: "tools/tool_stream", ToolUse: "tools/tool_use"
  }.freeze

  # The same, of classes that have a native half: their files begin with {Native.complete}.
  COMPLETED_ON_USE = {
    Index: "index", TermIndex: "index/term_index", Tensor: "tensor",
    Hub: "files/hub", Weights: "files/weights",
    Audio: "media/audio", Image: "media/image",
    AudioClassifier: "models/audio_classifier", AudioEmbeddingModel: "models/audio_embedding_model",
    Classifier: "models/classifier", CLIP: "models/clip", DepthEstimator: "models/depth_estimator",
    DocumentReader: "models/document_reader", EmbeddingModel: "models/embedding_model",
    GLiClass: "models/gliclass", GLiNER: "models/gliner",
    ImageClassifier: "models/image_classifier", ImageEmbeddingModel: "models/image_embedding_model",
    ImageSegmenter: "models/image_segmenter",
    LateInteractionModel: "models/late_interaction_model", LLM: "models/llm", MaskedLM: "models/masked_lm",
    NER: "models/ner", ObjectDetector: "models/object_detector", QuestionAnswerer: "models/question_answerer",
    Reranker: "models/reranker", Seq2Seq: "models/seq2seq",
    SparseEmbeddingModel: "models/sparse_embedding_model", SupportedModels: "models/supported_models",
    Transcriber: "models/transcriber", VLM: "models/vlm",
    VoiceActivityDetector: "models/voice_activity_detector",
    Gazetteer: "recognizers/gazetteer", TextPattern: "recognizers/text_pattern",
    Device: "runtime/device", DType: "runtime/dtype",
    Tokenizer: "text/tokenizer"
  }.freeze
  private_constant :ON_USE, :COMPLETED_ON_USE

  # Few programs need these, and other gems with them.
  autoload :ActiveRecord, "candle/active_record"
  autoload :CLI, "candle/cli"
  autoload :Jobs, "candle/jobs"
  autoload :MCP, "candle/mcp"
  autoload :ModelRegistry, "candle/files/model_registry"
  autoload :Server, "candle/server"
  autoload :Worker, "candle/worker"

  ON_USE.each { |name, file| autoload name, "candle/#{file}" }
  COMPLETED_ON_USE.each do |name, file|
    Native.halves[name] = remove_const(name)
    autoload name, "candle/#{file}"
  end

  # Loads at once what `require "candle"` leaves for its first use: before a server forks, so that its workers share
  # it. Rails does so by itself where it loads an application eagerly.
  #
  # @example
  #   Candle.eager_load! # => nil
  #
  # @return [nil]
  def self.eager_load!
    [ON_USE, COMPLETED_ON_USE].each { |files| files.each_key { |name| const_get(name) } }
    nil
  end

  # Which checkpoints this release can run, by the `model_type` of their `config.json`.
  #
  # @example
  #   llama = Candle.supported_models.find { |model| model[:model_type] == "llama" }
  #   llama[:tasks] # => [:llm, :embedding, :reranker, :classifier, :ner]
  #   llama[:formats] # => ["safetensors", "pytorch", "gguf"]
  #
  # @return [Array<Hash>] `{model_type:, tasks:, formats:, architectures:, projectors:, devices:}`, sorted: `tasks` are
  #   keys of {ModelKind::CLASSES}, each of which needs a checkpoint with the head for it, `architectures` what GGUF
  #   files call the model, `projectors` what `mmproj` files beside them call the part for images (without one, GGUF
  #   files are read for texts only), and `devices` those that this build can use
  def self.supported_models
    SupportedModels.list
  end
end

require "candle/railtie" if defined?(Rails::Railtie)
