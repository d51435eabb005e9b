# frozen_string_literal: true

module Candle
  # How a model marks what it thinks before it answers, found in its chat template and vocabulary.
  #
  # @api private
  class ReasoningFormat
    # How formats differ: what opens and closes reasoning; the tokens in that; whether a block may begin anywhere, as
    # where its marks are control tokens, or only first; marks around an answer, which are left out; and what closes
    # reasoning whose budget is spent.
    Shape = Struct.new(:name, :open, :close, :tokens, :anywhere, :wrappers, :ending, keyword_init: true) do
      def initialize(tokens: nil, anywhere: false, wrappers: [], ending: nil, **rest)
        tokens ||= [rest[:open], rest[:close]]
        ending ||= "\n#{rest[:close]}\n\n"
        super
      end
    end
    private_constant :Shape

    HARMONY_TOKENS = %w[<|channel|> <|message|> <|start|> <|end|> <|constrain|> <|call|> <|return|>].freeze
    # In the order they are looked for.
    SHAPES = [
      Shape.new(name: :harmony, open: "<|channel|>analysis<|message|>", close: "<|end|>", tokens: HARMONY_TOKENS,
                anywhere: true, ending: "<|end|><|start|>assistant<|channel|>final<|message|>"),
      Shape.new(name: :cohere, open: "<|START_THINKING|>", close: "<|END_THINKING|>", anywhere: true,
                tokens: %w[<|START_THINKING|> <|END_THINKING|> <|START_RESPONSE|> <|END_RESPONSE|> <|START_TEXT|>
                           <|END_TEXT|>],
                wrappers: %w[<|START_RESPONSE|> <|END_RESPONSE|> <|START_TEXT|> <|END_TEXT|>],
                ending: "<|END_THINKING|><|START_RESPONSE|>"),
      Shape.new(name: :gemma, open: "<|channel>thought\n", close: "<channel|>", tokens: %w[<|channel> <channel|>],
                anywhere: true, ending: "\n<channel|>"),
      Shape.new(name: :magistral, open: "[THINK]", close: "[/THINK]", anywhere: true, ending: "[/THINK]"),
      Shape.new(name: :seed, open: "<seed:think>", close: "</seed:think>"),
      Shape.new(name: :think, open: "<think>", close: "</think>", wrappers: %w[<response> </response>]),
      Shape.new(name: :thought, open: "<thought>", close: "</thought>"),
      Shape.new(name: :granite, open: "Here is my thought process:", close: "Here is my response:", tokens: [],
                ending: "\n\nHere is my response:\n")
    ].freeze
    private_constant :SHAPES

    # @param templates [Array<String>] the chat templates that may be used
    # @yieldparam token [String]
    # @yieldreturn [Integer, nil] its id in the vocabulary
    # @return [ReasoningFormat, nil] nil for a model that does not mark what it thinks
    def self.find(templates, &vocabulary)
      shape = SHAPES.find { |candidate| spoken?(candidate, templates, &vocabulary) }
      shape && new(shape, templates)
    end

    def self.spoken?(shape, templates, &vocabulary)
      marks = [shape.open, shape.close].map { |mark| mark[/\A.*?(?=<\|message|thought\n|\z)/m] }
      return templates.any? { |text| text.include?("<|channel|>") } if shape.name == :harmony
      return true if templates.any? { |text| marks.any? { |mark| text.include?(mark) } }

      shape.tokens.any? && shape.tokens.first(2).all?(&vocabulary)
    end
    private_class_method :spoken?

    # @param shape [Shape]
    # @param templates [Array<String>]
    def initialize(shape, templates)
      @shape = shape
      # The template names what stands around an answer, where the model was trained to write it.
      @wrappers = shape.anywhere ? shape.wrappers : shape.wrappers.select { |mark| templates.join.include?(mark) }
    end

    # @return [Symbol]
    def name
      @shape.name
    end

    # @return [String] what opens reasoning
    def open
      @shape.open
    end

    # @return [String] what closes it
    def close
      @shape.close
    end

    # @return [Array<String>] what may be control tokens in it, which the text of a run leaves out
    def tokens
      @shape.tokens
    end

    # @return [Array<String>] marks around an answer
    attr_reader :wrappers

    # @return [String] what closes reasoning whose budget is spent, and opens the answer
    def ending
      @shape.ending
    end

    # @return [String, nil] what opens an answer where nothing was thought, for formats in which answers are marked too
    def answer
      "<|channel|>final<|message|>" if name == :harmony
    end

    # @return [String] what a prompt ends with before such an answer
    def turn
      "<|start|>assistant"
    end

    # @return [Boolean] whether reasoning may begin anywhere
    def anywhere?
      @shape.anywhere
    end

    # @param prompt [String]
    # @return [Boolean] whether the prompt ends within reasoning
    def open_in?(prompt)
      prompt[[prompt.size - open.size - 16, 0].max..].rstrip.end_with?(open.rstrip)
    end

    # @param open [Boolean] whether the prompt has opened reasoning
    # @return [ReasoningSplitter, HarmonySplitter]
    def splitter(open:)
      name == :harmony ? HarmonySplitter.new(open: open) : ReasoningSplitter.new(self, open: open)
    end
  end
end
