# frozen_string_literal: true

module Candle
  # Keeps control tokens that users and tools write from being read as such: in their messages `<|im_end|>` is eight
  # letters, and not the end of a turn.
  #
  # @api private
  class LiteralContent
    # Who may write anything.
    ROLES = %w[user tool function].freeze
    # What may be a token of that kind.
    CANDIDATE = /<[^<>\s]{1,80}>|\[[^\[\]\s]{1,40}\]/
    # A character of no meaning, which stands within a control token while the prompt is made.
    FENCES = ("\u{E000}".."\u{E0FF}")
    # So many texts are remembered: strangers write them.
    MOST = 10_000
    private_constant :ROLES, :CANDIDATE, :FENCES, :MOST

    # @param tokenizer [Tokenizer]
    # @param marks [Array<String>] tokens beside control tokens that mean something to this model
    # @param templates [Array<String>] chat templates: what they write between signs is such a token too, where the
    #   vocabulary has it
    def initialize(tokenizer, marks: [], templates: [])
      @tokenizer = tokenizer
      @marks = marks | templates.flat_map { |template| template.to_s.scan(CANDIDATE) }
      @controls = {}
    end

    # @param messages [Array<Hash>]
    # @yieldparam messages [Array<Hash>] for the chat template
    # @yieldreturn [String] the prompt
    # @return [Array(String, Tokenizer::Ids)] the prompt and its ids; an Array of ids where content was fenced
    def encode(messages)
      messages, fence = fence(messages)
      prompt = yield(messages)
      fence ? [prompt.delete(fence), ids(prompt, fence)] : plain(prompt)
    end

    # @param messages [Array<Hash>]
    # @return [Array(Array<Hash>, String), Array(Array<Hash>, nil)] the messages for the chat template, and what stands
    #   in their control tokens; nil where there are none
    def fence(messages)
      texts = messages.flat_map { |message| texts_of(message) }
      return [messages, nil] unless texts.any? { |text| text.scan(CANDIDATE).any? { |found| control?(found) } }

      fence = FENCES.find { |letter| texts.none? { |text| text.include?(letter) } } || FENCES.first
      [messages.map { |message| fenced(message, fence) }, fence]
    end

    # Tokens of the fences are left out. Where one has joined others, the parts between fences are encoded apart.
    #
    # @param prompt [String] of fenced messages
    # @param fence [String]
    # @return [Array<Integer>]
    def ids(prompt, fence)
      encoded = @tokenizer.encode_with_offsets(prompt, add_special_tokens: false)
      found = encoded[:ids].zip(encoded[:offsets])
      around, rest = found.partition { |_, (from, to)| prompt[from...to].include?(fence) }
      return rest.map(&:first) if around.all? { |_, (from, to)| to - from == 1 }

      prompt.split(fence).flat_map { |part| @tokenizer.encode(part, add_special_tokens: false) }
    end

    private

    def plain(prompt)
      [prompt, @tokenizer.ids(prompt, add_special_tokens: false)]
    end

    def texts_of(message)
      return [] unless Hash === message && ROLES.include?((message[:role] || message["role"]).to_s)

      content = message[:content] || message["content"]
      parts = (Array === content ? content : [content]).map do |part|
        Hash === part ? part[:text] || part["text"] : part
      end
      parts.grep(String).select(&:valid_encoding?)
    end

    def control?(text)
      @controls.fetch(text) do
        @controls.clear if @controls.size >= MOST
        id = @tokenizer.token_to_id(text)
        @controls[text] = !id.nil? && (@marks.include?(text) || @tokenizer.decode([id]).empty?)
      end
    end

    def fenced(message, fence)
      return message if texts_of(message).empty?

      key = message.key?(:content) ? :content : "content"
      content = message[key]
      message.merge(key => Array === content ? content.map { |part| fenced_part(part, fence) } : guard(content, fence))
    end

    def fenced_part(part, fence)
      return part unless Hash === part && String === (part[:text] || part["text"])

      key = part.key?(:text) ? :text : "text"
      part.merge(key => guard(part[key], fence))
    end

    def guard(text, fence)
      text.gsub(CANDIDATE) { |found| control?(found) ? found.dup.insert(1, fence) : found }
    end
  end
end
