# frozen_string_literal: true

module Candle
  # Counts the tokens that stand before what users say: other prompts with the same instructions and tools begin with
  # them. Layers that keep states save one there, so that the next prompt goes on from it.
  #
  # @api private
  class Instructions
    # Who writes them.
    ROLES = %w[system developer].freeze
    # What another user says.
    OTHER = { role: "user", content: "?" }.freeze
    # Fewer bytes are fewer tokens than a page has.
    LEAST = 64
    private_constant :ROLES, :OTHER, :LEAST

    # @param tokenizer [Tokenizer]
    def initialize(tokenizer)
      @tokenizer = tokenizer
      @latest = ["", 0]
    end

    # @param prompt [String]
    # @param messages [Array<Hash>] those of the prompt
    # @yieldparam messages [Array<Hash>] another conversation with the same instructions
    # @yieldreturn [String] its prompt
    # @return [Integer] how many of the prompt's tokens others begin with too, 0 where that is unknown
    def count(prompt, messages)
      own = messages.take_while { |message| ROLES.include?((message[:role] || message["role"]).to_s) }
      same = beginning(prompt, yield([*own, OTHER]))
      return 0 if same.bytesize < LEAST

      latest, count = @latest
      # The last token may have gone on differently.
      count = @tokenizer.ids(same, add_special_tokens: false).size - 1 unless latest == same
      @latest = [same, count].freeze
      count
    rescue Error => e
      Candle.logger.debug { "the instructions of a prompt are not known: #{e.message}" }
      0
    end

    private

    # What two texts begin with.
    def beginning(one, other)
      most = [one, other].map(&:bytesize).min
      differs = (1..most).bsearch { |size| one.byteslice(0, size) != other.byteslice(0, size) }
      one.byteslice(0, differs ? differs - 1 : most).scrub("")
    end
  end
end
