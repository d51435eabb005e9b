# frozen_string_literal: true

Candle::Native.complete(:QuestionAnswerer)

module Candle
  # Answers that are parts of a text, found by an encoder with a question answering head.
  #
  # @example
  #   model = Candle::QuestionAnswerer.from_pretrained("spec/fixtures/tiny/bert-question")
  #   context = "paris is the capital of france"
  #   answer = model.answer("what is the capital?", context)
  #   context[answer[:start]...answer[:end]] == answer[:text] # => true
  class QuestionAnswerer
    include Model
    include Statistics

    # Contexts beyond {#max_length} are read in windows that share `stride` tokens. The same answer of several windows
    # counts once, with the sum of its scores. Answers begin and end with words.
    #
    # @param question [String]
    # @param context [String] the text that has the answer
    # @param top_k [Integer] how many answers to return
    # @param max_answer_length [Integer] how many tokens an answer has at most
    # @param no_answer [Boolean] whether that there is no answer competes with the others, as an empty text
    # @param stride [Integer, nil] how many tokens neighbouring windows share; nil means 128, or half of a window
    # @return [Hash, Array<Hash>, nil] `{text:, score:, start:, end:}` with character offsets, end excluded; for `top_k`
    #   above 1 an Array, best first; nil for a context without tokens
    # @raise [InvalidInputError] for what isn't a text, and for a question that leaves no room for its context
    def answer(question, context, top_k: 1, max_answer_length: 15, no_answer: false, stride: nil)
      texts, = Arguments.texts([question, context])
      top_k = Arguments.count(top_k, "top_k") || raise(ArgumentError, "top_k must be a positive Integer, not nil")
      longest = Arguments.count(max_answer_length, "max_answer_length") ||
                raise(ArgumentError, "max_answer_length must be a positive Integer, not nil")
      answers = _answer(*texts, [top_k, longest, no_answer ? true : false,
                                 Arguments.count(stride, "stride")])
      top_k == 1 ? answers.first : answers
    end

    # @return [Integer] how many tokens of a question and its context are read at once, special ones included
    def max_length
      _window
    end

    private

    def smoke_test
      answer("a", "a")
    end
  end
end
