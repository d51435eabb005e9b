# frozen_string_literal: true

require "json"
require "strscan"

module Candle
  # The forms of tool calls that models are trained to write, a file for each family. Which one a model writes is found
  # in its chat template and vocabulary.
  #
  # @api private
  module ToolFormats
    # Its constants, from the most particular to the most general.
    FILES = %w[json_calls named_calls tagged_calls loose_calls grammar argument_grammar hermes qwen_xml llama pythonic
               lfm2 mistral harmony deepseek glm granite phi4 cohere kimi mini_max functionary gemma fenced].freeze
    private_constant :FILES

    FILES.each { |file| require_relative "formats/#{file}" }

    # In the order in which templates are searched for them.
    ALL = [HARMONY, DEEPSEEK_TAGGED, DEEPSEEK, DEEPSEEK_NAMED, KIMI, MINI_MAX_TAGGED, MINI_MAX, GEMMA, FUNCTION_GEMMA,
           COHERE, COHERE_FENCED, GLM, QWEN_XML, LFM2, MISTRAL_NAMED, MISTRAL, PHI4, GRANITE, HERMES,
           FUNCTIONARY_LINES, FUNCTIONARY, PYTHONIC_TAGGED, LLAMA_BUILT_IN, LLAMA, PYTHONIC, GLM_LINES, PHI4_FUNCTOOLS,
           GEMMA_FENCED, FENCED, BARE].freeze
    # Forms of one family that its models mix.
    TOGETHER = { mistral_named: [MISTRAL], mistral: [MISTRAL_NAMED], llama: [LLAMA_BUILT_IN, PYTHONIC],
                 llama_built_in: [LLAMA, PYTHONIC], deepseek: [DEEPSEEK_NAMED], deepseek_named: [DEEPSEEK],
                 qwen_xml: [HERMES], pythonic_tagged: [PYTHONIC], phi4: [PHI4_FUNCTOOLS], granite: [HERMES],
                 functionary: [LLAMA], functionary_lines: [FUNCTIONARY_FIRST] }.freeze
    private_constant :TOGETHER

    module_function

    # @param templates [Array<String>] the chat templates that may be used
    # @yieldparam token [String]
    # @yieldreturn [Integer, nil] its id in the vocabulary
    # @return [Array<ToolFormat>] the model's form first, then others that it may write; all where none is found
    def find(templates, &vocabulary)
      found = ALL.find { |format| format.named?(templates) } ||
              ALL.find { |format| format.known?(&vocabulary) if format.name != :hermes }
      return ALL unless found

      [found, *TOGETHER[found.name], BARE].uniq
    end

    # @param formats [Array<ToolFormat>]
    # @return [Array<String>] what may be control tokens in them
    def tokens(formats)
      formats.flat_map { |format| [*format.tokens, *format.noise] }.uniq
    end
  end
end
