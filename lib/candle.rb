# frozen_string_literal: true

if defined?(Candle) && !Candle.instance_of?(Module)
  place = Object.const_source_location(:Candle).join(":")
  raise LoadError, "red-candle defines the module Candle, but Candle is a #{Candle.class} here already (#{place}). " \
                   "Rename that one or put it into a module of its own, and require \"candle\" before it is used"
end

require "candle/version"
require "candle/errors"
require "candle/logging"
require "candle/deprecation"
require "candle/either_keys"
require "candle/uncopyable"
require "candle/native"
require "candle/self_test"
require "candle/build_info"
require "candle/utils"
require "candle/dtype"
require "candle/device"
require "candle/tensor"
require "candle/tokenizer"
require "candle/hub"
require "candle/checkpoint_files"
require "candle/models_lock"
require "candle/model_gems"
require "candle/weights"
require "candle/model"
require "candle/structured/regex_syntax"
require "candle/structured/structured_constraint"
require "candle/generation_config"
require "candle/completion"
require "candle/session"
require "candle/structured/structured_output"
require "candle/structured/json_schema"
require "candle/tools/tool"
require "candle/tools/tool_call"
require "candle/tools/tool_call_result"
require "candle/tools/tool_call_parser"
require "candle/tools/tool_messages"
require "candle/tools/tool_use"
require "candle/llm"
require "candle/tools/agent_result"
require "candle/tools/agent_event"
require "candle/tools/agent"
require "candle/arguments"
require "candle/progress"
require "candle/text_splitter"
require "candle/index"
require "candle/embedding_model_type"
require "candle/embedding_model"
require "candle/reranker"
require "candle/recognizers/redaction"
require "candle/ner"
require "candle/recognizers/text_pattern"
require "candle/recognizers/pattern_entity_recognizer"
require "candle/recognizers/gazetteer"
require "candle/recognizers/gazetteer_entity_recognizer"
require "candle/recognizers/hybrid_ner"
require "candle/classifier"
require "candle/masked_lm"
require "candle/device_utils"
require "candle/model_kind"
require "candle/shortcuts"
require "candle/instrumentation"

# Transformer models inside your Ruby process.
module Candle
  # Loaded on use, since few programs need them.
  autoload :ActiveRecord, "candle/active_record"
  autoload :CLI, "candle/cli"
  autoload :Jobs, "candle/jobs"
  autoload :ModelRegistry, "candle/model_registry"
  autoload :Server, "candle/server"
  autoload :Worker, "candle/worker"
end

Candle::Instrumentation.install
require "candle/railtie" if defined?(Rails::Railtie)
