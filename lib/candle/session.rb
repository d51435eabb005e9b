# frozen_string_literal: true

module Candle
  # A conversation that keeps what the model has already read, so that each turn costs only what is new. Sessions share
  # the model's weights and may run in threads, one turn at a time each.
  class Session
    # @return [LLM]
    attr_reader :llm
    # @return [String, nil] the adapter that the conversation uses; nil is the base model
    attr_reader :adapter

    # @api private
    def initialize(llm, system: nil, adapter: nil)
      @llm = llm
      @adapter = adapter
      @messages = system ? [{ role: "system", content: TextInput.utf8(system, "system") }] : []
      @cache = llm.new_cache
      @turn = Mutex.new
    end

    # Says something and returns the answer, which also goes into {#messages}. With a block the answer is streamed.
    #
    # @param text [String]
    # @param options [Hash] as {LLM#chat} takes them
    # @yieldparam piece [String]
    # @return [String]
    def say(text, **options, &block)
      text = TextInput.utf8(text, "text")
      @turn.synchronize do
        asked = @messages + [{ role: "user", content: text }]
        completion = @llm.answer(asked, cache: @cache, adapter: @adapter, **options, &block)
        @messages = asked + [{ role: "assistant", content: completion.text }]
        completion.text
      end
    end

    # @return [Array<Hash>] a copy of the messages so far, `{role:, content:}` each
    def messages
      @messages.map(&:dup)
    end

    # Forgets the latest exchange.
    #
    # @return [Array<Hash>, nil] the messages forgotten, nil when there was none
    def rollback
      @turn.synchronize do
        start = @messages.rindex { |message| message[:role] == "user" }
        start && @messages.slice!(start..)
      end
    end

    # @return [String] one line
    def inspect
      "#<Candle::Session #{@messages.size} messages of #{@llm.model_id}>"
    end
  end
end
