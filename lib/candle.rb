# frozen_string_literal: true

if defined?(Candle) && !Candle.instance_of?(Module)
  place = Object.const_source_location(:Candle).join(":")
  raise LoadError, "red-candle defines the module Candle, but Candle is a #{Candle.class} here already (#{place}). " \
                   "Rename that one or put it into a module of its own, and require \"candle\" before it is used"
end

require "candle/version"
require "candle/errors"
require "candle/logging"
require "candle/native"
require "candle/self_test"
require "candle/build_info"
require "candle/utils"
require "candle/models_lock"
require "candle/shortcuts"

# Transformer models inside your Ruby process.
module Candle
  # What is loaded when it is first named.
  ON_USE = {
    Agent: "tools/agent", AgentEvent: "tools/agent_event", AgentResult: "tools/agent_result", Arguments: "arguments",
    BulkGeneration: "bulk_generation", CheckpointFiles: "checkpoint_files", Completion: "completion",
    Deprecation: "deprecation", DeviceUtils: "device_utils", EitherKeys: "either_keys",
    EmbeddingModelType: "embedding_model_type", GazetteerEntityRecognizer: "recognizers/gazetteer_entity_recognizer",
    GenerationConfig: "generation_config", HybridNER: "recognizers/hybrid_ner", Instrumentation: "instrumentation",
    JsonSchema: "structured/json_schema", Messages: "messages", Model: "model", ModelGems: "model_gems",
    ModelKind: "model_kind", PatternEntityRecognizer: "recognizers/pattern_entity_recognizer", Progress: "progress",
    Redaction: "recognizers/redaction", RegexSyntax: "structured/regex_syntax", Session: "session",
    Speculation: "speculation", Statistics: "statistics", StructuredConstraint: "structured/structured_constraint",
    StructuredOutput: "structured/structured_output", TextInput: "text_input", TextSplitter: "text_splitter",
    TextTasks: "text_tasks", Tool: "tools/tool", ToolCall: "tools/tool_call", ToolCallParser: "tools/tool_call_parser",
    ToolCallResult: "tools/tool_call_result", ToolMessages: "tools/tool_messages", ToolUse: "tools/tool_use",
    Uncopyable: "uncopyable"
  }.freeze

  # The same, of classes that have a native half: their files begin with {Native.complete}.
  COMPLETED_ON_USE = {
    CLIP: "clip", Classifier: "classifier", DType: "dtype", Device: "device", EmbeddingModel: "embedding_model",
    Gazetteer: "recognizers/gazetteer", Hub: "hub", Image: "image", ImageClassifier: "image_classifier",
    ImageEmbeddingModel: "image_embedding_model", Index: "index", LLM: "llm",
    LateInteractionModel: "late_interaction_model", MaskedLM: "masked_lm", NER: "ner", Reranker: "reranker",
    Seq2Seq: "seq2seq", SparseEmbeddingModel: "sparse_embedding_model", Tensor: "tensor",
    TextPattern: "recognizers/text_pattern", Tokenizer: "tokenizer", VLM: "vlm", Weights: "weights"
  }.freeze
  private_constant :ON_USE, :COMPLETED_ON_USE

  # Few programs need these, and other gems with them.
  autoload :ActiveRecord, "candle/active_record"
  autoload :CLI, "candle/cli"
  autoload :Jobs, "candle/jobs"
  autoload :ModelRegistry, "candle/model_registry"
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
end

require "candle/railtie" if defined?(Rails::Railtie)
